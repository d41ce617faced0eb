// RUN: sharding-opt %s --set-target=target=gpu:sm_90a --schedule | FileCheck %s

// Weights are not packed for a GPU. Buffers in the arena are aligned to 64 bytes, as on a CPU, so that plans need the same memory.
// CHECK: func.func @main({{.*}} attributes {{{.*}}rt.target = "gpu:sm_90a"}
// CHECK-NOT: rt.prepare
// CHECK: rt.kernel {{.*}} at [0]
// CHECK: nn.linear
// CHECK: rt.kernel {{.*}} at [64]
// CHECK: nn.rms_norm
func.func @main(%x: tensor<1x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.parameter = "w"}) -> (tensor<1x16xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %w : (tensor<1x8xf32>, tensor<16x8xf32>) -> tensor<1x16xf32>
  %1 = nn.rms_norm %0 eps 1.0e-5 : (tensor<1x16xf32>) -> tensor<1x16xf32>
  return %1 : tensor<1x16xf32>
}
