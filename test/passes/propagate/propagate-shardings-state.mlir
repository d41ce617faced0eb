// RUN: sharding-opt %s --split-input-file --bind-state --propagate-shardings | FileCheck %s

// A state takes the sharding of the value that the function writes to it. The axes come from a
// weight.

// CHECK: nn.state @mean {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, fill = 0.000000e+00 : f32}
// CHECK-LABEL: func.func @from_its_new_value
// CHECK-SAME: %{{[a-z0-9]+}}: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "mean"}
// CHECK-SAME: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "mean"})
dist.mesh @mesh = <["tp"=2]>
nn.state @mean {fill = 0.0 : f32} : tensor<6xf32>
func.func @from_its_new_value(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<6xf32> {nn.output = "y"}) {
  %old = nn.read @mean : tensor<6xf32>
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %m = nn.reduce mean %y dims [0] : (tensor<4x6xf32>) -> tensor<6xf32>
  nn.write @mean, %m : tensor<6xf32>
  return %old : tensor<6xf32>
}

// -----

// The user's sharding holds, and the value that is written takes it.

// CHECK: nn.state @cache {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>
// CHECK-LABEL: func.func @stated
// CHECK: nn.neg {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>
// CHECK: nn.add {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>
dist.mesh @mesh = <["tp"=2]>
nn.state @cache {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : tensor<4x6xf32>
func.func @stated(%x: tensor<4x6xf32> {nn.input = "x"}) -> (tensor<4x6xf32> {nn.output = "y"}) {
  %old = nn.read @cache : tensor<4x6xf32>
  %n = nn.neg %old : tensor<4x6xf32>
  %new = nn.add %n, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x6xf32>
  nn.write @cache, %new : tensor<4x6xf32>
  return %new : tensor<4x6xf32>
}

// -----

// Two functions share a weight and a state. The first one shards the weight, the second one
// writes the state. A state that no function touches is replicated.

// CHECK: nn.state @seen {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>
// CHECK: nn.state @idle {dist.sharding = #dist.sharding<@mesh, [{}, {}]>
// CHECK-LABEL: func.func @first
// CHECK-SAME: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "seen"}
// CHECK-LABEL: func.func @second
// CHECK-SAME: tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "w"}
// CHECK-SAME: -> (tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "seen"})
dist.mesh @mesh = <["tp"=2]>
nn.state @seen : tensor<6xf32>
nn.state @idle : tensor<2x2xf32>
func.func @first(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>})
    -> (tensor<4x6xf32> {nn.output = "y"}, tensor<6xf32> {nn.output = "s"}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  %s = nn.read @seen : tensor<6xf32>
  return %y, %s : tensor<4x6xf32>, tensor<6xf32>
}
func.func @second(%x: tensor<1x8xf32> {nn.input = "x"}, %w: tensor<6x8xf32> {nn.parameter = "w"}) {
  %y = nn.linear %x, %w : (tensor<1x8xf32>, tensor<6x8xf32>) -> tensor<1x6xf32>
  %z = nn.reshape %y : (tensor<1x6xf32>) -> tensor<6xf32>
  nn.write @seen, %z : tensor<6xf32>
  return
}

// -----

// Two states change places, so they have one layout.

// CHECK: nn.state @a {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>
// CHECK: nn.state @b {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>
dist.mesh @mesh = <["tp"=2]>
nn.state @a {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
nn.state @b : tensor<4xf32>
func.func @swap() {
  %a = nn.read @a : tensor<4xf32>
  %b = nn.read @b : tensor<4xf32>
  nn.write @a, %b : tensor<4xf32>
  nn.write @b, %a : tensor<4xf32>
  return
}

// -----

// A state that keeps its value, next to a layout that comes to it from an op.

// CHECK: nn.state @kept {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>}
// CHECK-LABEL: func.func @keeps
dist.mesh @mesh = <["tp"=2]>
nn.state @kept : tensor<6xf32>
func.func @keeps(%x: tensor<4x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<4x6xf32> {nn.output = "y"}) {
  %0 = nn.read @kept : tensor<6xf32>
  %1 = nn.add %x, %0 : (tensor<4x6xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  nn.write @kept, %0 : tensor<6xf32>
  return %1 : tensor<4x6xf32>
}

// -----

// A state that is declared unreduced is so in all places, and takes axes for its dimensions.

// CHECK: nn.state @grad {dist.sharding = #dist.sharding<@mesh, [{"tp"}], unreduced = {"dp"}>
// CHECK-LABEL: func.func @unreduced
// CHECK-SAME: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}], unreduced = {"dp"}>, nn.state = "grad"}
// CHECK-SAME: -> (tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}], unreduced = {"dp"}>, nn.state = "grad"})
dist.mesh @mesh = <["dp"=2, "tp"=2]>
nn.state @grad {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{?}], unreduced = {"dp"}>} : tensor<6xf32>
func.func @unreduced(%x: tensor<4x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {"tp"}]>}) {
  %s = nn.reduce sum %x dims [0] : (tensor<4x6xf32>) -> tensor<6xf32>
  %old = nn.read @grad : tensor<6xf32>
  %new = nn.add %old, %s : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @grad, %new : tensor<6xf32>
  return
}

// -----

// An axis over which a value is unreduced shards none of its dimensions.

// CHECK-LABEL: func.func @keeps_unreduced_axes
// CHECK-SAME: tensor<6xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, nn.input = "y"}
dist.mesh @mesh = <["tp"=2]>
func.func @keeps_unreduced_axes(%x: tensor<6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>},
                                %y: tensor<6xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{?}], unreduced = {"tp"}>})
    -> (tensor<6xf32> {nn.output = "z"}) {
  %z = nn.add %x, %y : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  return %z : tensor<6xf32>
}
