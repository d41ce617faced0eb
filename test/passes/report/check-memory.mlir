// RUN: split-file %s %t
// RUN: sharding-opt %t/fused.mlir --check-memory="ceiling=512" | FileCheck %s
// RUN: not sharding-opt %t/fused.mlir --check-memory="ceiling=511" 2>&1 | FileCheck %s --check-prefix=FUSED
// RUN: sharding-opt %t/mask.mlir --check-memory="ceiling=400000" | FileCheck %s
// RUN: not sharding-opt %t/mask.mlir --check-memory="ceiling=100000" 2>&1 | FileCheck %s --check-prefix=MASK
// RUN: sharding-opt %t/mask.mlir --report-communication="file=%t/mask.json" -o /dev/null
// RUN: FileCheck %s --check-prefix=REPORT --input-file=%t/mask.json
// RUN: sharding-opt %t/branch.mlir --check-memory="ceiling=128" | FileCheck %s
// RUN: not sharding-opt %t/branch.mlir --check-memory="ceiling=127" 2>&1 | FileCheck %s --check-prefix=BRANCH

// CHECK: func.func @main

// What one kernel computes of a value that it made is not in memory.
// FUSED: error: 'main' needs 512 bytes on a rank, 384 for parameters and inputs and 128 for what it computes, in the most frugal order: expected at most 511, the memory ceiling
//--- fused.mlir
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

// A mask of 4 MiB that attention computes from 8 KiB.
// MASK: error: 'main' needs {{[1-3][0-9]+}} bytes on a rank, {{.*}} expected at most 100000, the memory ceiling
// REPORT: "activations_peak": {{[1-3][0-9][0-9][0-9][0-9][0-9]}}{{$|,}}
//--- mask.mlir
dist.mesh @mesh = <["tp"=2]>
func.func @main(
    %x: tensor<1x2x1024x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {} ]>, dist.global = tensor<1x2x1024x16xf32>, nn.input = "x"},
    %ids: tensor<1024xi64> {dist.sharding = #dist.sharding<@mesh, [{} ]>, dist.global = tensor<1024xi64>, nn.input = "ids"})
    -> (tensor<1x2x1024x16xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {} ]>, dist.global = tensor<1x2x1024x16xf32>, nn.output = "y"})
    attributes {dist.spmd = @mesh} {
  %zero = nn.constant dense<0.0> : tensor<f32>
  %low = nn.constant dense<0xFF800000> : tensor<f32>
  %q = nn.reshape %ids : (tensor<1024xi64>) -> tensor<1x1x1024x1xi64>
  %k = nn.reshape %ids : (tensor<1024xi64>) -> tensor<1x1x1x1024xi64>
  %same = nn.compare eq %q, %k : (tensor<1x1x1024x1xi64>, tensor<1x1x1x1024xi64>) -> tensor<1x1x1024x1024xi1>
  %bias = nn.select %same, %zero, %low : (tensor<1x1x1024x1024xi1>, tensor<f32>, tensor<f32>) -> tensor<1x1x1024x1024xf32>
  %0 = nn.attention %x, %x, %x bias %bias scale 0.25 : (tensor<1x2x1024x16xf32>, tensor<1x2x1024x16xf32>, tensor<1x2x1024x16xf32>, tensor<1x1x1024x1024xf32>) -> tensor<1x2x1024x16xf32>
  return %0 : tensor<1x2x1024x16xf32>
}

// What cannot be scheduled: all values count.
// BRANCH: error: 'main' needs 128 bytes on a rank, 0 for weights and 128 for inputs and activations: expected at most 127, the memory ceiling
//--- branch.mlir
dist.mesh @mesh = <["tp"=2]>
func.func @main(
    %x: tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<4x4xf32>, nn.input = "x"})
    -> (tensor<4x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<4x4xf32>, nn.output = "y"})
    attributes {dist.spmd = @mesh} {
  %condition = arith.constant true
  %0 = scf.if %condition -> tensor<4x4xf32> {
    %1 = nn.relu %x : tensor<4x4xf32>
    scf.yield %1 : tensor<4x4xf32>
  } else {
    scf.yield %x : tensor<4x4xf32>
  }
  return %0 : tensor<4x4xf32>
}
