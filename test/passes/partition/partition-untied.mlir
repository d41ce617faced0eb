// RUN: sharding-opt %s --split-input-file --propagate-shardings --partition | FileCheck %s

// 12 of 13 x 12 and 39 of 4 x 39 have no common factor that a reshape could keep. It reads its
// operand whole.
// CHECK-LABEL: func.func @reshape
// CHECK-SAME: %[[X:.*]]: tensor<13x3xf32>
// CHECK: %[[F:.*]] = nn.reshape {{.*}} -> tensor<39xf32>
// CHECK: dist.all_gather {{.*}} -> tensor<13x12xf32>
// CHECK: nn.reshape {{.*}} : (tensor<156xf32>) -> tensor<4x39xf32>
dist.mesh @mesh = <["x"=4]>
func.func @reshape(%a: tensor<13x12xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>}) -> (tensor<4x39xf32> {nn.output = "r"}) {
  %0 = nn.reshape %a : (tensor<13x12xf32>) -> tensor<156xf32>
  %1 = nn.reshape %0 : (tensor<156xf32>) -> tensor<4x39xf32>
  return %1 : tensor<4x39xf32>
}

// -----

// The minor factors agree. The reshape keeps their layout.
// CHECK-LABEL: func.func @minor
// CHECK: nn.reshape {{.*}} : (tensor<13x12x2xf32>) -> tensor<312xf32>
// CHECK-NEXT: nn.reshape {{.*}} : (tensor<312xf32>) -> tensor<4x39x2xf32>
// CHECK-NEXT: return
dist.mesh @mesh = <["x"=4]>
func.func @minor(%a: tensor<13x12x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"x"}]>}) -> (tensor<4x39x8xf32> {nn.output = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"x"}]>}) {
  %0 = nn.reshape %a : (tensor<13x12x8xf32>) -> tensor<1248xf32>
  %1 = nn.reshape %0 : (tensor<1248xf32>) -> tensor<4x39x8xf32>
  return %1 : tensor<4x39x8xf32>
}

// -----

// Two products of the same size, but of other factors, are added whole.
// CHECK-LABEL: func.func @add
// CHECK: dist.all_gather
// CHECK: nn.add {{.*}} -> tensor<156xf32>
dist.mesh @mesh = <["x"=4]>
func.func @add(%a: tensor<13x12xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{}, {"x"}]>}, %b: tensor<4x39xf32> {nn.parameter = "b", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) -> (tensor<156xf32> {nn.output = "r"}) {
  %0 = nn.reshape %a : (tensor<13x12xf32>) -> tensor<156xf32>
  %1 = nn.reshape %b : (tensor<4x39xf32>) -> tensor<156xf32>
  %2 = nn.add %0, %1 : (tensor<156xf32>, tensor<156xf32>) -> tensor<156xf32>
  return %2 : tensor<156xf32>
}
