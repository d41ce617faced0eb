// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// A state that is written with another layout than it has.

dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<4x4xf32>
func.func @another_layout(%x: tensor<4x2xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x4xf32>})
    -> (tensor<2x4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<4x4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{operand 0 is from here, and has layout [{}, (2, 4{"tp"})]}}
  %0 = nn.reshape %x : (tensor<4x2xf32>) -> tensor<2x4xf32>
  // expected-error@+1 {{result 0 (the new value of state 's'): expected layout [{"tp"}, {}], which the signature promises, got [{}, (2, 4{"tp"})]}}
  return %0 : tensor<2x4xf32>
}

// -----

// A state that is written as a partial sum.

dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}, {}]>} : tensor<4x6xf32>
func.func @unreduced(%x: tensor<4x4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x8xf32>},
                     %w: tensor<6x4xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<6x8xf32>})
    -> (tensor<4x6xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x6xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{operand 0 is unreduced over {"tp"} from here on}}
  %0 = nn.linear %x, %w : (tensor<4x4xf32>, tensor<6x4xf32>) -> tensor<4x6xf32>
  // expected-error@+1 {{result 0 (the new value of state 's'): expected layout [{}, {}], which the signature promises, got [{}, {}] unreduced {"tp"}}}
  return %0 : tensor<4x6xf32>
}

// -----

// Two functions that hold one state in different layouts: the second one differs from the state.

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the state}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<4x4xf32>
func.func @first(%s: tensor<2x4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<4x4xf32>})
    attributes {dist.spmd = @mesh} {
  return
}
// expected-error@+1 {{expected argument 0 (the state 's') to have the layout of the state, [{"tp"}, {}] (2x4 on a rank), got [{}, {"tp"}] (4x2 on a rank)}}
func.func @second(%s: tensor<4x2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x4xf32>})
    attributes {dist.spmd = @mesh} {
  return
}

// -----

// The same axes with another padding.

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the state}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<3xf32>
// expected-error@+1 {{expected argument 0 (the state 's') to have the layout of the state, [{"tp"}] (2 on a rank), got [{"tp"}] (4 on a rank)}}
func.func @another_padding(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  return
}

// -----

// The state has no layout.

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the state}}
nn.state @s : tensor<4xf32>
// expected-error@+1 {{argument 0 (the state 's') has the layout [{"tp"}]: expected the nn.state to have a 'dist.sharding', which all functions share}}
func.func @no_layout(%s: tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  return
}

// -----

// The next call would read exp(0) as padding.

dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<3xf32>
func.func @padding(%s: tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<3xf32>})
    -> (tensor<2xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<3xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = nn.exp %s : tensor<2xf32>
  // expected-error@+1 {{result 0 (the new value of state 's') has padding that may not be zero: expected zeros, which the next call reads}}
  return %0 : tensor<2xf32>
}

// -----

// A state that is unreduced is written reduced: the next call would add the value once per rank.

dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>} : tensor<4xf32>
func.func @reduced(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<4xf32>})
    -> (tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{operand 0 is from here, and has layout [{}]}}
  %0 = dist.all_reduce sum %s axes ["tp"] : (tensor<4xf32>) -> tensor<4xf32>
  // expected-error@+1 {{result 0 (the new value of state 's'): expected layout [{}] unreduced {"tp"}, which the signature promises, got [{}]}}
  return %0 : tensor<4xf32>
}

// -----

// Another reduction than that of the state.

dist.mesh @mesh = <["tp"=2]>
// expected-note@+1 {{the state}}
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>} : tensor<4xf32>
// expected-error@+1 {{expected argument 0 (the state 's') to have the layout of the state, [{}] unreduced {"tp"} (4 on a rank), got [{}] unreduced max {"tp"} (4 on a rank)}}
func.func @another_reduction(%s: tensor<4xf32> {nn.state = "s", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"tp"}>, dist.global = tensor<4xf32>})
    attributes {dist.spmd = @mesh} {
  return
}

// -----

// A partial maximum of a sum.

dist.mesh @mesh = <["dp"=2, "tp"=2]>
// expected-note@+1 {{operand 0 is unreduced over {"tp"} from here on}}
func.func @maximum_of_sum(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{makes a partial maximum of a sum}}
  %0 = dist.partial max %x axes ["dp"] : (tensor<4xf32>) -> tensor<4xf32>
  return
}

// -----

// The larger of a part of a maximum and a part of a sum.

dist.mesh @mesh = <["tp"=2]>
func.func @larger(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"tp"}>, dist.global = tensor<4xf32>},
                  // expected-note@+1 {{operand 1 is unreduced over {"tp"} from here on}}
                  %y: tensor<4xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{operand 1 differs between the ranks of {"tp"}, over which operand 0 is a maximum that is not yet taken}}
  %0 = nn.maximum %x, %y : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return
}
