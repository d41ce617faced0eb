// RUN: sharding-opt %s --split-input-file --annotate-tensor-parallel --annotate-scatter-modes=mode=on | FileCheck %s --check-prefixes=CHECK,ON
// RUN: sharding-opt %s --split-input-file --annotate-tensor-parallel --annotate-scatter-modes=mode=off | FileCheck %s --check-prefixes=CHECK,OFF

// Tokens are sharded from the sum on, through the residual add and the norm.

// CHECK-LABEL: func.func @sequence
// ON: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>{{.*}}tensor<8x32xf32>
// ON: nn.add {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}]>
// OFF-NOT: [{}, {"tp"}, {}]
// CHECK: return
dist.mesh @mesh = <["tp"=2]>
func.func @sequence(%x: tensor<1x6x8xf32> {nn.input = "x"}, %a: tensor<32x8xf32> {nn.parameter = "a"},
                %b: tensor<8x32xf32> {nn.parameter = "b"}) -> (tensor<1x6x8xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x eps 1.0e-5 : (tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  %1 = nn.linear %0, %a : (tensor<1x6x8xf32>, tensor<32x8xf32>) -> tensor<1x6x32xf32>
  %2 = nn.relu %1 : tensor<1x6x32xf32>
  %3 = nn.linear %2, %b : (tensor<1x6x32xf32>, tensor<8x32xf32>) -> tensor<1x6x8xf32>
  %4 = nn.add %x, %3 : (tensor<1x6x8xf32>, tensor<1x6x8xf32>) -> tensor<1x6x8xf32>
  return %4 : tensor<1x6x8xf32>
}

// -----

// A sequence of one: the batch's rows are the tokens.

// CHECK-LABEL: func.func @batch
// ON: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>{{.*}}tensor<8x32xf32>
// OFF-NOT: [{"tp"}, {}, {}]
// CHECK: return
dist.mesh @mesh = <["tp"=2]>
func.func @batch(%x: tensor<6x1x8xf32> {nn.input = "x"}, %a: tensor<32x8xf32> {nn.parameter = "a"},
                %b: tensor<8x32xf32> {nn.parameter = "b"}) -> (tensor<6x1x8xf32> {nn.output = "y"}) {
  %0 = nn.rms_norm %x eps 1.0e-5 : (tensor<6x1x8xf32>) -> tensor<6x1x8xf32>
  %1 = nn.linear %0, %a : (tensor<6x1x8xf32>, tensor<32x8xf32>) -> tensor<6x1x32xf32>
  %2 = nn.relu %1 : tensor<6x1x32xf32>
  %3 = nn.linear %2, %b : (tensor<6x1x32xf32>, tensor<8x32xf32>) -> tensor<6x1x8xf32>
  %4 = nn.add %x, %3 : (tensor<6x1x8xf32>, tensor<6x1x8xf32>) -> tensor<6x1x8xf32>
  return %4 : tensor<6x1x8xf32>
}
