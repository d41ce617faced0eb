// RUN: sharding-opt %s --split-input-file --bind-state --propagate-shardings --partition | FileCheck %s

// The new value of a state is resharded to the layout of the state, and not to that of an
// output of the same value.

// CHECK: nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>
// CHECK-LABEL: func.func @reshards
// CHECK-SAME: %[[X:.+]]: tensor<4x4xf32>
// CHECK: %[[Y:.+]] = nn.neg %[[X]]
// CHECK: %[[S:.+]] = dist.all_to_all %[[Y]] axes ["tp"] from [1] to [0]
// CHECK: return %[[Y]], %[[S]] : tensor<4x4xf32>, tensor<2x8xf32>
dist.mesh @mesh = <["tp"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<4x8xf32>
func.func @reshards(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<4x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) {
  %y = nn.neg %x {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : tensor<4x8xf32>
  nn.write @s, %y : tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}

// -----

// A partial sum is reduced before it is written.

// CHECK-LABEL: func.func @reduces
// CHECK: %[[P:.+]] = nn.linear
// CHECK: %[[R:.+]] = dist.all_reduce sum %[[P]] axes ["tp"]
// CHECK: return %[[R]]
dist.mesh @mesh = <["tp"=2]>
nn.state @s : tensor<4x6xf32>
func.func @reduces(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                   %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  nn.write @s, %y : tensor<4x6xf32>
  return
}

// -----

// The next call reads the padding of a state as zeros, so the padding of its new value is
// masked where it is not zero.

// CHECK: nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>
// CHECK-LABEL: func.func @masks
// CHECK: %[[E:.+]] = nn.exp
// CHECK: %[[M:.+]] = nn.select %{{.+}}, %[[E]]
// CHECK: return %[[E]], %[[M]]
dist.mesh @mesh = <["tp"=4]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<6xf32>
func.func @masks() -> (tensor<6xf32> {nn.output = "y"}) {
  %s = nn.read @s : tensor<6xf32>
  %e = nn.exp %s : tensor<6xf32>
  nn.write @s, %e : tensor<6xf32>
  return %e : tensor<6xf32>
}

// -----

// Padding that stays zero needs no mask.

// CHECK-LABEL: func.func @stays_zero
// CHECK-NOT: dist.positions
// CHECK: return
dist.mesh @mesh = <["tp"=4]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<6xf32>
func.func @stays_zero() {
  %s = nn.read @s : tensor<6xf32>
  %t = nn.add %s, %s : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @s, %t : tensor<6xf32>
  return
}

// -----

// A constant is padding, too.

// CHECK-LABEL: func.func @masks_constant
// CHECK: dist.positions <6 pad 8{"tp"}>
// CHECK: nn.select
dist.mesh @mesh = <["tp"=4]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<6xf32>
func.func @masks_constant() {
  %one = nn.constant dense<1.0> : tensor<6xf32>
  nn.write @s, %one : tensor<6xf32>
  return
}

// -----

// Two functions shard one dimension over different numbers of ranks. Both pad it to 12, and the
// state says so.

// CHECK: nn.state @s {dist.sharding = #dist.sharding<@mesh, [(10 pad 12{"b"})]>
// CHECK-LABEL: func.func @two
// CHECK-SAME: tensor<6xf32>
// CHECK-LABEL: func.func @six
// CHECK-SAME: tensor<6xf32>
// CHECK: tensor<2xf32>
dist.mesh @mesh = <["a"=3, "b"=2]>
nn.state @s {dist.sharding = #dist.sharding<@mesh, [{"b"}]>} : tensor<10xf32>
func.func @two() -> (tensor<10xf32> {nn.output = "y"}) {
  %s = nn.read @s : tensor<10xf32>
  return %s : tensor<10xf32>
}
func.func @six() -> (tensor<10xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"b", "a"}]>}) {
  %s = nn.read @s : tensor<10xf32>
  %t = nn.add %s, %s : (tensor<10xf32>, tensor<10xf32>) -> tensor<10xf32>
  return %t : tensor<10xf32>
}
