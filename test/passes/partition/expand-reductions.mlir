// RUN: sharding-opt %s --split-input-file --expand-reductions | FileCheck %s
// RUN: sharding-opt %s --split-input-file --expand-reductions --partition --verify-placement | FileCheck %s --check-prefix=SPMD

// A softmax over a sharded dimension exchanges a maximum and a sum for each row.
// CHECK-LABEL: func.func @softmax
// CHECK: %[[M:.*]] = nn.reduce max %arg0 dims [1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, keep_dims}
// CHECK: %[[T:.*]] = nn.maximum %[[M]],
// CHECK: %[[C:.*]] = nn.sub %arg0, %[[T]] {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}
// CHECK: %[[E:.*]] = nn.exp %[[C]] {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}
// CHECK: %[[S:.*]] = nn.reduce sum %[[E]] dims [1] {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, keep_dims}
// CHECK: nn.div %[[E]], {{.*}} {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, nn.id = 3 : i64}
// SPMD-LABEL: func.func @softmax
// SPMD: dist.all_reduce max %{{.*}} axes ["tp"] : (tensor<4x1xf32>)
// SPMD: dist.all_reduce sum %{{.*}} axes ["tp"] : (tensor<4x1xf32>)
// SPMD-NOT: dist.all
// SPMD: return
dist.mesh @mesh = <["tp"=2]>
func.func @softmax(%x: tensor<4x64xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<4x64xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) {
  %y = nn.softmax %x dim 1 {nn.id = 3 : i64, dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : tensor<4x64xf32>
  return %y : tensor<4x64xf32>
}

// -----

// Classes that no axis divides: padding is hidden from the maximum and from the sums.
// CHECK-LABEL: func.func @cross_entropy
// CHECK-NOT: nn.cross_entropy
// SPMD-LABEL: func.func @cross_entropy
// SPMD: %[[I:.*]] = nn.constant dense<0xFF800000> : tensor<f32>
// SPMD: %[[X:.*]] = nn.select %{{.*}}, %{{.*}}, %[[I]]
// SPMD: %[[M:.*]] = nn.reduce max %[[X]] dims [1]
// SPMD: dist.all_reduce max %[[M]] axes ["tp"] : (tensor<4x1xf32>)
// SPMD: dist.all_reduce sum %{{.*}} axes ["tp"] : (tensor<4x1xf32>)
// SPMD: dist.all_reduce sum %{{.*}} axes ["tp"] : (tensor<4x1xf32>)
// SPMD-NOT: dist.all
// SPMD: return
dist.mesh @mesh = <["tp"=2]>
func.func @cross_entropy(%z: tensor<4x7xf32> {nn.input = "z", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>},
                         %y: tensor<4xi64> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{}]>})
    -> (tensor<4xf32> {nn.output = "l", dist.sharding = #dist.sharding<@mesh, [{}]>}) {
  %l = nn.cross_entropy %z, %y dim 1 {ignore_index = -100 : i64, dist.sharding = #dist.sharding<@mesh, [{}]>} : (tensor<4x7xf32>, tensor<4xi64>) -> tensor<4xf32>
  return %l : tensor<4xf32>
}

// -----

// Minima are maxima of negated numbers. Padding of integers is the least integer.
// CHECK-LABEL: func.func @minimum
// CHECK: nn.neg
// CHECK: nn.reduce max
// CHECK: nn.neg
// SPMD-LABEL: func.func @minimum
// SPMD: %[[I:.*]] = nn.constant dense<-9223372036854775808> : tensor<i64>
// SPMD: nn.select %{{.*}}, %{{.*}}, %[[I]]
// SPMD: dist.all_reduce max %{{.*}} axes ["tp"] : (tensor<4xi64>)
dist.mesh @mesh = <["tp"=2]>
func.func @minimum(%x: tensor<4x7xi64> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<4xi64> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}]>}) {
  %y = nn.reduce min %x dims [1] {dist.sharding = #dist.sharding<@mesh, [{}]>} : (tensor<4x7xi64>) -> tensor<4xi64>
  return %y : tensor<4xi64>
}

// -----

// A mean of bf16 is summed in f32.
// CHECK-LABEL: func.func @mean
// CHECK: nn.cast {{.*}} -> tensor<4x8xf32>
// CHECK: nn.reduce sum {{.*}} -> tensor<4xf32>
// CHECK: nn.cast {{.*}} -> tensor<4xbf16>
dist.mesh @mesh = <["tp"=2]>
func.func @mean(%x: tensor<4x8xbf16> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<4xbf16> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}]>}) {
  %y = nn.reduce mean %x dims [1] {dist.sharding = #dist.sharding<@mesh, [{}]>} : (tensor<4x8xbf16>) -> tensor<4xbf16>
  return %y : tensor<4xbf16>
}

// -----

// Other dimensions may be sharded; and a row of two is gathered.
// CHECK-LABEL: func.func @others
// CHECK: nn.softmax
// CHECK: nn.softmax
dist.mesh @mesh = <["tp"=2]>
func.func @others(%x: tensor<4x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                  %y: tensor<4x2xf32> {nn.input = "y", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>})
    -> (tensor<4x8xf32> {nn.output = "a"}, tensor<4x2xf32> {nn.output = "b"}) {
  %a = nn.softmax %x dim 1 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<4x8xf32>
  %b = nn.softmax %y dim 1 {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : tensor<4x2xf32>
  return %a, %b : tensor<4x8xf32>, tensor<4x2xf32>
}

// -----

// Parts of attention are sharded by part, and their merged result by heads: the parts are exchanged in one launch,
// and the merge is local.
// CHECK-LABEL: func.func @merge
// CHECK: nn.merge_parts
// SPMD-LABEL: func.func @merge
// SPMD-COUNT-2: dist.all_to_all
// SPMD: nn.merge_parts {{.*}} -> tensor<1x3x2x8xf32>
// SPMD-NOT: dist.all
// SPMD: return
dist.mesh @mesh = <["tp"=2]>
func.func @merge(%p: tensor<1x2x3x4x8xf32> {nn.input = "p", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}, {}]>},
                 %l: tensor<1x2x3x4xf32> {nn.input = "l", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>})
    -> (tensor<1x3x4x8xf32> {nn.output = "y", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>}) {
  %y = nn.merge_parts %p, %l {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>} : (tensor<1x2x3x4x8xf32>, tensor<1x2x3x4xf32>) -> tensor<1x3x4x8xf32>
  return %y : tensor<1x3x4x8xf32>
}
