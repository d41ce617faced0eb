// RUN: sharding-opt %s --split-input-file --bind-state --propagate-shardings --partition --verify-placement | FileCheck %s

// A gradient accumulator is a sum that stays open between calls. `@accumulate` adds a partial sum
// to it without a collective. `@apply` reduces it once, and writes zeros, which are a sum of zeros.

// CHECK: nn.state @grad {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"a"}>
// CHECK-LABEL: func.func @accumulate
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<6x8xf32> {dist.global = tensor<6x8xf32>, dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"a"}>, nn.state = "grad"}
// CHECK-NOT: = dist.
// CHECK: %[[N:.+]] = nn.add %[[G]]
// CHECK-NEXT: return %[[N]]
// CHECK-LABEL: func.func @apply
// CHECK-SAME: %[[G:[a-z0-9]+]]: tensor<6x8xf32> {{[^%]*}}nn.state = "grad"
// CHECK-COUNT-1: dist.all_reduce sum
// CHECK-NOT: all_reduce
// CHECK-NOT: dist.partial
// CHECK: nn.constant dense<0.000000e+00> : tensor<6x8xf32>
// CHECK: return
dist.mesh @mesh = <["a"=4]>
nn.state @grad {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"a"}>} : tensor<6x8xf32>
func.func @accumulate(%dy: tensor<8x6xf32> {nn.input = "dy", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}]>},
                      %x: tensor<8x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}]>}) {
  %t = nn.transpose %dy [1, 0] : (tensor<8x6xf32>) -> tensor<6x8xf32>
  %g = nn.matmul %t, %x : (tensor<6x8xf32>, tensor<8x8xf32>) -> tensor<6x8xf32>
  %old = nn.read @grad : tensor<6x8xf32>
  %new = nn.add %old, %g : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  nn.write @grad, %new : tensor<6x8xf32>
  return
}
func.func @apply(%w: tensor<6x8xf32> {nn.parameter = "w"}) -> (tensor<6x8xf32> {nn.output = "new"}) {
  %g = nn.read @grad : tensor<6x8xf32>
  %e = nn.exp %g : tensor<6x8xf32>
  %m = nn.mul %g, %e : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  %new = nn.sub %w, %m : (tensor<6x8xf32>, tensor<6x8xf32>) -> tensor<6x8xf32>
  %zero = nn.constant dense<0.0> : tensor<6x8xf32>
  nn.write @grad, %zero : tensor<6x8xf32>
  return %new : tensor<6x8xf32>
}

// -----

// A use that reads a sum unreduced takes it before its reduction.

// CHECK-LABEL: func.func @both
// CHECK: %[[P:.+]] = nn.linear
// CHECK: %[[R:.+]] = dist.all_reduce sum %[[P]] axes ["a"]
// CHECK: return %[[P]], %[[R]]
dist.mesh @mesh = <["a"=2]>
func.func @both(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>})
    -> (tensor<4x6xf32> {nn.output = "p", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"a"}>},
        tensor<4x6xf32> {nn.output = "r", dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %y, %y : tensor<4x6xf32>, tensor<4x6xf32>
}

// -----

// A bias is one part of an unreduced result.

// CHECK-LABEL: func.func @bias
// CHECK: %[[P:.+]] = nn.linear
// CHECK-NEXT: %[[B:.+]] = dist.partial %{{.*}} axes ["a"]
// CHECK-NEXT: %[[S:.+]] = nn.add %[[P]], %[[B]]
// CHECK-NEXT: return %[[S]]
dist.mesh @mesh = <["a"=2]>
func.func @bias(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>},
                %b: tensor<6xf32> {nn.parameter = "b"})
    -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"a"}>}) {
  %y = nn.linear %x, %w bias %b : (tensor<4x8xf32>, tensor<6x8xf32>, tensor<6xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// The parts of a maximum: of a reduction, of a running maximum, and of a value that all ranks have.

// CHECK-LABEL: func.func @maxima
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4x6xf32>
// CHECK-SAME: %[[S:[a-z0-9]+]]: tensor<6xf32> {{[^%]*}}unreduced = max {"a"}>, nn.state = "peak"}
// CHECK-NOT: all_reduce
// CHECK: %[[M:.+]] = nn.reduce max %[[X]]
// CHECK-NEXT: %[[N:.+]] = nn.maximum %[[S]], %[[M]]
// CHECK-NEXT: %[[P:.+]] = dist.partial max %{{.*}} axes ["a"]
// CHECK-NEXT: return %[[P]], %[[N]]
dist.mesh @mesh = <["a"=2]>
nn.state @peak {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"a"}>} : tensor<6xf32>
func.func @maxima(%x: tensor<8x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}]>},
                  %y: tensor<6xf32> {nn.input = "y"})
    -> (tensor<6xf32> {nn.output = "z", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = max {"a"}>}) {
  %m = nn.reduce max %x dims [0] : (tensor<8x6xf32>) -> tensor<6xf32>
  %old = nn.read @peak : tensor<6xf32>
  %new = nn.maximum %old, %m : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @peak, %new : tensor<6xf32>
  return %y : tensor<6xf32>
}

// -----

// Parts of a sum are no parts of a maximum.

// CHECK-LABEL: func.func @sum_to_maximum
// CHECK: %[[P:.+]] = nn.linear
// CHECK-NEXT: %[[R:.+]] = dist.all_reduce sum %[[P]]
// CHECK-NEXT: %[[M:.+]] = dist.partial max %[[R]]
// CHECK-NEXT: return %[[M]]
dist.mesh @mesh = <["a"=2]>
func.func @sum_to_maximum(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>},
                %w: tensor<6x8xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}]>})
    -> (tensor<4x6xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = max {"a"}>}) {
  %y = nn.linear %x, %w : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %y : tensor<4x6xf32>
}

// -----

// The padding of unreduced states is masked on each rank, of sums and of maxima.

// CHECK-LABEL: func.func @padded
// CHECK: nn.maximum
// CHECK: nn.select
// CHECK: nn.select
// CHECK: return
dist.mesh @mesh = <["a"=2, "b"=4]>
nn.state @peak {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{"b"}], unreduced = max {"a"}>} : tensor<6xf32>
nn.state @total {fill = 0.0 : f32, dist.sharding = #dist.sharding<@mesh, [{"b"}], unreduced = {"a"}>} : tensor<6xf32>
func.func @padded(%x: tensor<8x6xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"a"}, {"b"}]>}) {
  %e = nn.exp %x : tensor<8x6xf32>
  %m = nn.reduce max %e dims [0] : (tensor<8x6xf32>) -> tensor<6xf32>
  %old = nn.read @peak : tensor<6xf32>
  %new = nn.maximum %old, %m : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @peak, %new : tensor<6xf32>
  %s = nn.reduce sum %e dims [0] : (tensor<8x6xf32>) -> tensor<6xf32>
  %before = nn.read @total : tensor<6xf32>
  %after = nn.add %before, %s : (tensor<6xf32>, tensor<6xf32>) -> tensor<6xf32>
  nn.write @total, %after : tensor<6xf32>
  return
}

// -----

// A sum with itself has each part twice.

// CHECK-LABEL: func.func @twice
// CHECK-SAME: %[[X:[a-z0-9]+]]: tensor<4xf32>
// CHECK: %[[S:.+]] = nn.add %[[X]], %[[X]]
// CHECK-NEXT: dist.all_reduce sum %[[S]]
dist.mesh @mesh = <["a"=2]>
func.func @twice(%x: tensor<4xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"a"}>})
    -> (tensor<4xf32> {nn.output = "y"}) {
  %y = nn.add %x, %x : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %y : tensor<4xf32>
}
