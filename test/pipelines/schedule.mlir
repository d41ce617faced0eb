// RUN: sharding-opt %s --parallelize="mesh=tp=2 device=cpu sequence-parallel=off" --schedule | FileCheck %s
// RUN: sharding-opt %s --schedule | FileCheck %s --check-prefix=GLOBAL

// The whole way, and a program for one rank.

// CHECK: func.func @main
// CHECK-SAME: rt.arena = [[BYTES:[0-9]+]] : i64, rt.live = [[BYTES]] : i64
// CHECK: %[[UP:.*]] = rt.kernel %{{.*}}, %{{.*}} at [{{[0-9]+}}]
// CHECK: nn.linear
// CHECK: rt.start %{{.*}} stream 1 at [{{[0-9]+}}]
// CHECK: dist.all_reduce
// CHECK: %[[SUM:.*]] = rt.wait
// CHECK: return %[[SUM]]

// GLOBAL: func.func @main
// GLOBAL-SAME: rt.arena = 768 : i64, rt.live = 768 : i64
// GLOBAL-NOT: rt.start
func.func @main(%x: tensor<8x8xf32> {nn.input = "x"}, %up: tensor<16x8xf32> {nn.parameter = "up"},
                %down: tensor<8x16xf32> {nn.parameter = "down"}) -> (tensor<8x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<8x8xf32>, tensor<16x8xf32>) -> tensor<8x16xf32>
  %1 = nn.silu %0 : tensor<8x16xf32>
  %2 = nn.linear %1, %down : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}
