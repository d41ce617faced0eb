// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// A gradient that is not summed over the ranks of the tokens.
dist.mesh @mesh = <["dp"=2]>
func.func @not_reduced(
    %dy: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x6xf32>},
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<6x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
  %g = nn.weight_grad %dy, %x : (tensor<4x6xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  // expected-error@below {{result 0}}
  return %g : tensor<6x8xf32>
}

// -----

// Padding of the tokens that may be anything.
dist.mesh @mesh = <["dp"=2]>
func.func @padded_tokens(
    %dy: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<7x6xf32>},
    %ids: tensor<4xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}]>, dist.global = tensor<7xi64>})
    -> (tensor<9x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<9x6xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %e = nn.exp %dy : tensor<4x6xf32>
  // expected-error@below {{reads the padding behind the 7 true of 8 rows: expected zero, got positive}}
  %g = nn.scatter_add %e, %ids dim 0 : (tensor<4x6xf32>, tensor<4xi64>) -> tensor<9x6xf32>
  %r = dist.all_reduce sum %g axes ["dp"] : (tensor<9x6xf32>) -> tensor<9x6xf32>
  return %r : tensor<9x6xf32>
}

// -----

// Zeros in padding hold only if no row is infinite. The padding goes to row 0, which may be finite.
dist.mesh @mesh = <["dp"=2]>
func.func @conditional_zeros(
    %dy: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<7x6xf32>},
    %s: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<6xf32>},
    %ids: tensor<4xi64> {dist.sharding = #dist.sharding<@mesh, [{"dp"}]>, dist.global = tensor<7xi64>})
    -> (tensor<9x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<9x6xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %e = nn.mul %dy, %s : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  // expected-error@below {{reads the padding behind the 7 true of 8 rows}}
  %g = nn.scatter_add %e, %ids dim 0 : (tensor<4x6xf32>, tensor<4xi64>) -> tensor<9x6xf32>
  %r = dist.all_reduce sum %g axes ["dp"] : (tensor<9x6xf32>) -> tensor<9x6xf32>
  return %r : tensor<9x6xf32>
}

// -----

// An offset over another axis than the result promises.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @wrong_axis(
    %dy: tensor<8x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x6xf32>},
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<7x6xf32>})
    attributes {dist.spmd = @mesh} {
  %o = dist.axis_index ["dp"] chunk 4 : tensor<i64>
  // expected-note@below {{operand 0 is from here, and has layout [{"dp"}, {}]}}
  %g = nn.scatter_add %dy, %ids offset %o dim 0 {nn.table_rows = 7 : i64} : (tensor<8x6xf32>, tensor<8xi64>, tensor<i64>) -> tensor<4x6xf32>
  // expected-error@below {{result 0}}
  return %g : tensor<4x6xf32>
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @wrong_chunk(
    %dy: tensor<8x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x6xf32>},
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<7x6xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 2 is from here}}
  %o = dist.axis_index ["tp"] chunk 3 : tensor<i64>
  // expected-error@below {{expected an offset of 4 rows a rank, got 3}}
  %g = nn.scatter_add %dy, %ids offset %o dim 0 {nn.table_rows = 7 : i64} : (tensor<8x6xf32>, tensor<8xi64>, tensor<i64>) -> tensor<4x6xf32>
  return %g : tensor<4x6xf32>
}

// -----

// Each rank would sum its rows alone.
dist.mesh @mesh = <["tp"=2]>
func.func @other_coordinate(
    %dy: tensor<8x6xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x6xf32>},
    %ids: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<7x6xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{the coordinate is from here}}
  %o = dist.axis_index ["tp"] chunk 4 : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %p = nn.add %o, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  // expected-error@below {{mixes a value that depends on the rank's coordinate along}}
  %g = nn.scatter_add %dy, %ids offset %p dim 0 {nn.table_rows = 7 : i64} : (tensor<8x6xf32>, tensor<8xi64>, tensor<i64>) -> tensor<4x6xf32>
  return %g : tensor<4x6xf32>
}

// -----

// A gradient that is summed twice.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @reduced_twice(
    %dy: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x6xf32>},
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<6x8xf32>})
    attributes {dist.spmd = @mesh} {
  %g = nn.weight_grad %dy, %x : (tensor<4x6xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  // expected-note@below {{operand 0 is from here, and has layout [{}, {}]}}
  %r = dist.all_reduce sum %g axes ["dp"] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  // expected-error@below {{reduces operand 0 over {"dp"}, over which it is replicated: the result would be 2 times too large}}
  %s = dist.all_reduce sum %r axes ["dp"] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  return %s : tensor<6x8xf32>
}

// -----

// A gradient that is summed over the wrong axes.
dist.mesh @mesh = <["dp"=2, "tp"=2]>
func.func @wrong_axes(
    %dy: tensor<4x6xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x6xf32>},
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>})
    -> (tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<6x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is unreduced over {"dp"} from here on}}
  %g = nn.weight_grad %dy, %x : (tensor<4x6xf32>, tensor<4x8xf32>) -> tensor<6x8xf32>
  // expected-error@below {{reduces operand 0 over {"tp"}, over which it is replicated}}
  %r = dist.all_reduce sum %g axes ["tp"] : (tensor<6x8xf32>) -> tensor<6x8xf32>
  return %r : tensor<6x8xf32>
}
