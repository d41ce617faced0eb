// RUN: sharding-opt %s --form-kernels="target=cpu:x86-64-v4" --pack-weights="target=cpu:x86-64-v4" -split-input-file | FileCheck %s
// RUN: sharding-opt %s --set-target="target=cpu:x86-64-v4" --schedule -split-input-file | FileCheck %s --check-prefix=PLAN

// A gathered weight is packed where it is used if another op joins the product, and the packed form has a
// place in the arena.
// CHECK-LABEL: func.func @gathered
// CHECK: %[[G:.*]] = rt.wait
// CHECK: %[[P:.*]] = rt.kernel %[[G]] :
// CHECK: rt.prepare %{{.*}} <k = 10, n = 96, transposed = true, panel = 32> at use : tensor<96x10xf32>
// CHECK: rt.kernel %{{.*}}, %[[P]] :
// CHECK: nn.linear
// CHECK-NEXT: nn.relu
// PLAN-LABEL: func.func @gathered
// 12 steps of 96 columns.
// PLAN-SAME: rt.live = 53760
dist.mesh @mesh = <["dp"=2]>
func.func @gathered(
    %x: tensor<128x10xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<128x10xf32>},
    %w: tensor<48x10xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<96x10xf32>})
    -> (tensor<128x96xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<128x96xf32>})
    attributes {dist.spmd = @mesh} {
  %g = dist.all_gather %w axes ["dp"] dims [0] : (tensor<48x10xf32>) -> tensor<96x10xf32>
  %0 = nn.linear %x, %g : (tensor<128x10xf32>, tensor<96x10xf32>) -> tensor<128x96xf32>
  %1 = nn.relu %0 : tensor<128x96xf32>
  return %1 : tensor<128x96xf32>
}

// -----

// A product of few rows takes less time than the packing.
// CHECK-LABEL: func.func @few_rows
// CHECK-NOT: rt.prepare
dist.mesh @mesh = <["dp"=2]>
func.func @few_rows(
    %x: tensor<32x10xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x10xf32>},
    %w: tensor<48x10xf32> {nn.parameter = "w", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<96x10xf32>})
    -> (tensor<32x96xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x96xf32>})
    attributes {dist.spmd = @mesh} {
  %g = dist.all_gather %w axes ["dp"] dims [0] : (tensor<48x10xf32>) -> tensor<96x10xf32>
  %0 = nn.linear %x, %g : (tensor<32x10xf32>, tensor<96x10xf32>) -> tensor<32x96xf32>
  %1 = nn.relu %0 : tensor<32x96xf32>
  return %1 : tensor<32x96xf32>
}

// -----

// A cast is prepared before the call, by itself where it is read so, and with the packing for products.
// CHECK-LABEL: func.func @cast
// CHECK-SAME: %[[X:.*]]: tensor<4x8xbf16> {{.*}}, %[[I:.*]]: tensor<3xi64> {{.*}}, %[[W:.*]]: tensor<16x8xf32>
// CHECK-DAG: %[[P:.*]] = rt.prepare %[[W]] <k = 8, n = 16, transposed = true, panel = 32, group = 2> at load : tensor<16x8xf32> -> tensor<16x8xbf16>
// CHECK-DAG: %[[C:.*]] = rt.prepare %[[W]] at load : tensor<16x8xf32> -> tensor<16x8xbf16>
// CHECK-NOT: nn.cast
// CHECK-DAG: rt.kernel %[[X]], %[[P]] :
// CHECK-DAG: rt.kernel %[[I]], %[[C]] :
func.func @cast(%x: tensor<4x8xbf16> {nn.input = "x"}, %i: tensor<3xi64> {nn.input = "i"}, %w: tensor<16x8xf32> {nn.parameter = "w"})
    -> (tensor<4x16xbf16>, tensor<3x8xbf16>) {
  %0 = nn.cast %w : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %1 = nn.linear %x, %0 : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %2 = nn.relu %1 : tensor<4x16xbf16>
  %3 = nn.embedding %i, %0 : (tensor<3xi64>, tensor<16x8xbf16>) -> tensor<3x8xbf16>
  return %2, %3 : tensor<4x16xbf16>, tensor<3x8xbf16>
}

// -----

// A trained weight is cast whenever it has another value.
// CHECK-LABEL: func.func @evaluate
// CHECK-SAME: %[[X:.*]]: tensor<4x8xbf16> {{.*}}, %[[W:.*]]: tensor<16x8xf32>
// CHECK: %[[P:.*]] = rt.prepare %[[W]] <{{.*}}> at update : tensor<16x8xf32> -> tensor<16x8xbf16>
// CHECK: rt.kernel %[[X]], %[[P]] :
nn.state @w {role = "parameter"} : tensor<16x8xf32>
func.func @evaluate(%x: tensor<4x8xbf16> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.state = "w"}) -> tensor<4x16xbf16> {
  %0 = nn.cast %w : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %1 = nn.linear %x, %0 : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  return %1 : tensor<4x16xbf16>
}

// -----

// A call that gives the weight another value casts it once in either way. It is packed only for two products.
// CHECK-LABEL: func.func @step
// CHECK-SAME: %[[X:.*]]: tensor<4x8xbf16> {{.*}}, %[[V:.*]]: tensor<16x8xf32> {nn.state = "v"}, %[[W:.*]]: tensor<16x8xf32>
// CHECK: %[[P:.*]] = rt.prepare %[[V]] <{{.*}}> at update : tensor<16x8xf32> -> tensor<16x8xbf16>
// CHECK-NOT: rt.prepare
// CHECK: rt.kernel %[[X]], %[[P]] :
// CHECK: rt.kernel %{{.*}}, %[[P]] :
// CHECK: %[[C:.*]] = rt.kernel %[[W]] :
// CHECK-NEXT: ^bb0
// CHECK-NEXT: nn.cast
// CHECK: rt.kernel %[[X]], %[[C]] :
nn.state @v {role = "parameter"} : tensor<16x8xf32>
nn.state @w {role = "parameter"} : tensor<16x8xf32>
func.func @step(%x: tensor<4x8xbf16> {nn.input = "x"}, %v: tensor<16x8xf32> {nn.state = "v"}, %w: tensor<16x8xf32> {nn.state = "w"})
    -> (tensor<4x16xbf16>, tensor<4x16xbf16>, tensor<4x16xbf16>, tensor<16x8xf32> {nn.state = "v"}, tensor<16x8xf32> {nn.state = "w"}) {
  %0 = nn.cast %v : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %1 = nn.linear %x, %0 : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %2 = nn.exp %x : tensor<4x8xbf16>
  %3 = nn.linear %2, %0 : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %4 = nn.cast %w : (tensor<16x8xf32>) -> tensor<16x8xbf16>
  %5 = nn.linear %x, %4 : (tensor<4x8xbf16>, tensor<16x8xbf16>) -> tensor<4x16xbf16>
  %6 = nn.neg %v : tensor<16x8xf32>
  %7 = nn.neg %w : tensor<16x8xf32>
  return %1, %3, %5, %6, %7 : tensor<4x16xbf16>, tensor<4x16xbf16>, tensor<4x16xbf16>, tensor<16x8xf32>, tensor<16x8xf32>
}
