// RUN: not sharding-opt %s --overlap-collectives=when=often 2>&1 | FileCheck %s --check-prefix=WHEN
// RUN: not sharding-opt %s --form-kernels --overlap-collectives=memory-ceiling=1024 2>&1 | FileCheck %s --check-prefix=CEILING
// RUN: not sharding-opt %s --request-schedule=memory-ceiling=1024 --schedule 2>&1 | FileCheck %s --check-prefix=CEILING
// RUN: not sharding-opt %s --overlap-collectives --request-schedule=overlap=sometimes 2>&1 | FileCheck %s --check-prefix=REQUEST
// RUN: sharding-opt %s --form-kernels --overlap-collectives=memory-ceiling=1152 --plan-buffers | FileCheck %s

// WHEN: for the --when option: expected on, off or auto, got 'often'
// REQUEST: for the --overlap option: expected on, off or auto, got 'sometimes'

// The program fits the smallest ceiling that the error names.
// CEILING: error: 'main' needs 1152 bytes on a rank, 128 for parameters and inputs and 1024 for what it computes, in the most frugal order: expected at most 1024, the memory ceiling
// CHECK: rt.arena = 1024 : i64
dist.mesh @mesh = <["tp"=4], device = "h100">
func.func @main(
    %y: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %y axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
  %1 = nn.softmax %0 dim 1 : tensor<16x8xf32>
  return %1 : tensor<16x8xf32>
}
