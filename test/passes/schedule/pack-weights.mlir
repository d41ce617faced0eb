// RUN: sharding-opt %s --form-kernels="target-cpu=x86-64" --pack-weights="target-cpu=x86-64-v4" -split-input-file | FileCheck %s
// RUN: sharding-opt %s --form-kernels="target-cpu=x86-64" --pack-weights="target-cpu=haswell" -split-input-file | FileCheck %s --check-prefix=AVX2
// RUN: sharding-opt %s --form-kernels="target-cpu=x86-64" --pack-weights="target-cpu=x86-64" -split-input-file | FileCheck %s --check-prefix=NONE

// A parameter that two products read is packed once, in either orientation;
// what is no product reads it as it lies.
// CHECK-LABEL: func.func @main
// CHECK-SAME: %[[X:.*]]: tensor<4x8xf32> {{.*}}, %[[W:.*]]: tensor<16x8xf32> {{.*}}, %[[V:.*]]: tensor<16x8xbf16>
// CHECK-DAG: %[[PW:.*]] = rt.prepare %[[W]] <k = 8, n = 16, transposed = true, panel = 32> : tensor<16x8xf32>
// CHECK-DAG: %[[PV:.*]] = rt.prepare %[[V]] <k = 16, n = 8, panel = 32, group = 2> : tensor<16x8xbf16>
// CHECK: rt.kernel %[[X]], %[[PW]] :
// CHECK: rt.kernel %{{.*}}, %[[PV]] :
// CHECK: rt.kernel %[[W]] :
// CHECK: rt.kernel %{{.*}}, %[[PW]] :
// AVX2-LABEL: func.func @main
// AVX2-DAG: rt.prepare %{{.*}} <k = 8, n = 16, transposed = true, panel = 16>
// AVX2-DAG: rt.prepare %{{.*}} <k = 16, n = 8, panel = 16, group = 2>
// Without fused multiply-add there is no kernel.
// NONE-LABEL: func.func @main
// NONE-NOT: rt.prepare
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"},
                %w: tensor<16x8xf32> {nn.parameter = "w"},
                %v: tensor<16x8xbf16> {nn.parameter = "v"})
    -> (tensor<4x8xbf16>, tensor<16x8xf32>, tensor<4x16xf32>) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.cast %0 : (tensor<4x16xf32>) -> tensor<4x16xbf16>
  %2 = nn.linear %1, %v {in_out} : (tensor<4x16xbf16>, tensor<16x8xbf16>) -> tensor<4x8xbf16>
  %3 = nn.exp %w : tensor<16x8xf32>
  %4 = nn.cast %2 : (tensor<4x8xbf16>) -> tensor<4x8xf32>
  %5 = nn.linear %4, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  return %2, %3, %5 : tensor<4x8xbf16>, tensor<16x8xf32>, tensor<4x16xf32>
}

// -----

// Not what is computed, nor other types.
// CHECK-LABEL: func.func @main
// CHECK-NOT: rt.prepare
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<16x8xf32> {nn.input = "w"},
                %y: tensor<4x8xf64> {nn.input = "y"}, %v: tensor<16x8xf64> {nn.parameter = "v"})
    -> (tensor<4x16xf32>, tensor<4x16xf64>) {
  %0 = nn.linear %x, %w : (tensor<4x8xf32>, tensor<16x8xf32>) -> tensor<4x16xf32>
  %1 = nn.linear %y, %v : (tensor<4x8xf64>, tensor<16x8xf64>) -> tensor<4x16xf64>
  return %0, %1 : tensor<4x16xf32>, tensor<4x16xf64>
}
