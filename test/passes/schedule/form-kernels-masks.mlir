// RUN: sharding-opt %s --form-kernels --verify-roundtrip -split-input-file | FileCheck %s

// The mask of padding is part of the product's kernel, which makes it of the loops.
// CHECK-LABEL: func.func @epilogue
// CHECK: rt.kernel %{{.*}}, %{{.*}} : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
// CHECK: nn.linear
// CHECK-NEXT: nn.exp
// CHECK-NEXT: dist.positions <10 pad 12{"tp"}>
// CHECK: nn.compare ge
// CHECK: nn.select
// CHECK-NEXT: rt.yield
// CHECK: rt.kernel
// CHECK: nn.linear
// CHECK-NOT: rt.kernel
dist.mesh @mesh = <["tp"=4]>
func.func @epilogue(
    %x: tensor<2x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x8xf32>},
    %a: tensor<3x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x8xf32>},
    %o: tensor<8x3xf32> {nn.parameter = "o", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x10xf32>})
    -> (tensor<2x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %u = nn.linear %x, %a : (tensor<2x8xf32>, tensor<3x8xf32>) -> tensor<2x3xf32>
  %e = nn.exp %u : tensor<2x3xf32>
  %t = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %c = nn.compare ge %t, %z : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %n = nn.constant dense<0.0> : tensor<f32>
  %m = nn.select %c, %e, %n : (tensor<3xi1>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %y = nn.linear %m, %o : (tensor<2x3xf32>, tensor<8x3xf32>) -> tensor<2x8xf32>
  return %y : tensor<2x8xf32>
}

// -----

// Two kernels make the mask, one along columns and one along rows.
// CHECK-LABEL: func.func @shared
// CHECK: rt.kernel %{{[^,]*}} : (tensor<2x3xf32>) -> tensor<2x3xf32>
// CHECK: dist.positions
// CHECK: rt.kernel %{{[^,]*}} : (tensor<3x2xf32>) -> tensor<3x2xf32>
// CHECK: dist.positions
// CHECK: nn.reshape %{{.*}} : (tensor<3xi1>) -> tensor<3x1xi1>
// CHECK-NOT: rt.kernel
dist.mesh @mesh = <["tp"=4]>
func.func @shared(
    %x: tensor<2x3xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<2x10xf32>},
    %r: tensor<3x2xf32> {nn.input = "r", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x2xf32>})
    -> (tensor<2x3xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<2x10xf32>},
        tensor<3x2xf32> {nn.output = "z", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<10x2xf32>})
    attributes {dist.spmd = @mesh} {
  %t = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %c = nn.compare ge %t, %z : (tensor<3xi64>, tensor<i64>) -> tensor<3xi1>
  %n = nn.constant dense<0.0> : tensor<f32>
  %m = nn.select %c, %x, %n : (tensor<3xi1>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
  %v = nn.reshape %c : (tensor<3xi1>) -> tensor<3x1xi1>
  %s = nn.select %v, %r, %n : (tensor<3x1xi1>, tensor<3x2xf32>, tensor<f32>) -> tensor<3x2xf32>
  return %m, %s : tensor<2x3xf32>, tensor<3x2xf32>
}

// -----

// In zigzag order a kernel can tell padding, but not make the positions.
// CHECK-LABEL: func.func @zigzag
// CHECK: rt.kernel : () -> tensor<8xi64>
// CHECK-NEXT: dist.positions
// CHECK-NEXT: rt.yield
// CHECK: rt.kernel %{{[^,]*}} : (tensor<8xi64>) -> tensor<8xi64>
// CHECK-NOT: dist.positions
// CHECK: rt.kernel %{{[^,]*}} : (tensor<8xf32>) -> tensor<8xf32>
// CHECK: dist.positions
// CHECK-NOT: rt.kernel
dist.mesh @mesh = <["ring"=2]>
func.func @zigzag(
    %x: tensor<8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 2{"ring"})]>, dist.global = tensor<14xf32>})
    -> (tensor<8xi64> {nn.output = "p", dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 2{"ring"})]>, dist.global = tensor<14xi64>},
        tensor<8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [(14 pad 16 zigzag 2{"ring"})]>, dist.global = tensor<14xf32>})
    attributes {dist.spmd = @mesh} {
  %t = dist.positions <14 pad 16 zigzag 2{"ring"}> : tensor<8xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %d = nn.mul %t, %t : (tensor<8xi64>, tensor<8xi64>) -> tensor<8xi64>
  %c = nn.compare ge %t, %z : (tensor<8xi64>, tensor<i64>) -> tensor<8xi1>
  %n = nn.constant dense<0.0> : tensor<f32>
  %m = nn.select %c, %x, %n : (tensor<8xi1>, tensor<8xf32>, tensor<f32>) -> tensor<8xf32>
  return %d, %m : tensor<8xi64>, tensor<8xf32>
}

// -----

// Without padding, positions are a launch.
// CHECK-LABEL: func.func @whole
// CHECK: rt.kernel : () -> tensor<4xi64>
// CHECK: rt.kernel
dist.mesh @mesh = <["tp"=2]>
func.func @whole() -> (tensor<4xi64> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xi64>})
    attributes {dist.spmd = @mesh} {
  %t = dist.positions <8{"tp"}> : tensor<4xi64>
  %d = nn.mul %t, %t : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
  return %d : tensor<4xi64>
}

// -----

// Comparisons with splats of all types, which test no positions.
// CHECK-LABEL: func.func @other_comparisons
// CHECK-COUNT-3: nn.compare ge
func.func @other_comparisons(%x: tensor<3xf32>, %y: tensor<3xbf16>, %z: tensor<3xi32>) -> (tensor<3xi1>, tensor<3xi1>, tensor<3xi1>) {
  %a = nn.constant dense<0.0> : tensor<f32>
  %b = nn.constant dense<1.0> : tensor<bf16>
  %c = nn.constant dense<0> : tensor<i32>
  %p = nn.compare ge %x, %a : (tensor<3xf32>, tensor<f32>) -> tensor<3xi1>
  %q = nn.compare ge %y, %b : (tensor<3xbf16>, tensor<bf16>) -> tensor<3xi1>
  %r = nn.compare ge %z, %c : (tensor<3xi32>, tensor<i32>) -> tensor<3xi1>
  return %p, %q, %r : tensor<3xi1>, tensor<3xi1>, tensor<3xi1>
}

// -----

// The comparison broadcasts positions, so they are not tested by their index.
// CHECK-LABEL: func.func @broadcast
// CHECK: rt.kernel
// CHECK: dist.positions
// CHECK-NOT: rt.kernel
dist.mesh @mesh = <["tp"=4]>
func.func @broadcast() -> (tensor<2x3xi1> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<2x10xi1>})
    attributes {dist.spmd = @mesh} {
  %t = dist.positions <10 pad 12{"tp"}> : tensor<3xi64>
  %z = nn.constant dense<0> : tensor<2x1xi64>
  %c = nn.compare ge %t, %z : (tensor<3xi64>, tensor<2x1xi64>) -> tensor<2x3xi1>
  return %c : tensor<2x3xi1>
}
