// RUN: sharding-opt %s --check-memory="ceiling=1024" | FileCheck %s
// RUN: not sharding-opt %s --check-memory="ceiling=600" 2>&1 | FileCheck %s --check-prefix=ERROR

// CHECK: func.func @main
// ERROR: error: 'main' needs 640 bytes on a rank, 256 for weights and 384 for inputs and activations: expected at most 600, the memory ceiling
dist.mesh @mesh = <["tp"=2]>
func.func @main(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<4x8xf32>, nn.input = "x"},
    %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<8x8xf32>, nn.parameter = "w"})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<4x8xf32>, nn.output = "y"})
    attributes {dist.spmd = @mesh} {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %1 = nn.relu %0 : tensor<4x8xf32>
  return %1 : tensor<4x8xf32>
}
