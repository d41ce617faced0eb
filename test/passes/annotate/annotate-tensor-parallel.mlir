// RUN: sharding-opt %s --split-input-file --annotate-tensor-parallel | FileCheck %s

// An MLP: up is column-parallel, down is row-parallel, for any names.

// CHECK-LABEL: func.func @mlp
// CHECK-SAME: tensor<32x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "a"}
// CHECK-SAME: tensor<8x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, nn.parameter = "b"}
dist.mesh @mesh = <["tp"=2]>
func.func @mlp(%x: tensor<4x8xf32> {nn.input = "x"}, %a: tensor<32x8xf32> {nn.parameter = "a"},
                %b: tensor<8x32xf32> {nn.parameter = "b"}) -> (tensor<4x8xf32> {nn.output = "y"}) {
  %n = nn.rms_norm %x eps 1.0e-5 : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %1 = nn.linear %n, %a : (tensor<4x8xf32>, tensor<32x8xf32>) -> tensor<4x32xf32>
  %2 = nn.relu %1 : tensor<4x32xf32>
  %3 = nn.linear %2, %b : (tensor<4x32xf32>, tensor<8x32xf32>) -> tensor<4x8xf32>
  return %3 : tensor<4x8xf32>
}

// -----

// Two key heads on four ranks: they take a half of the axis, the three query
// heads of each group, padded to four, the other.

// CHECK-LABEL: func.func @grouped_heads
// CHECK-SAME: tensor<24x8xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 4), {}]>, nn.parameter = "q"}
// CHECK-SAME: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}]>, nn.parameter = "k"}
// CHECK-SAME: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}]>, nn.parameter = "v"}
// CHECK-SAME: tensor<8x24xf32> {dist.sharding = #dist.sharding<@mesh, [{}, (2{"tp":(1)2}, 3 pad 4{"tp":(2)2}, 4)]>, nn.parameter = "o"}
dist.mesh @mesh = <["tp"=4]>
func.func @grouped_heads(%x: tensor<1x5x8xf32> {nn.input = "x"}, %q: tensor<24x8xf32> {nn.parameter = "q"},
                %k: tensor<8x8xf32> {nn.parameter = "k"}, %v: tensor<8x8xf32> {nn.parameter = "v"},
                %o: tensor<8x24xf32> {nn.parameter = "o"}) -> (tensor<1x5x8xf32> {nn.output = "y"}) {
  %n = nn.rms_norm %x eps 1.0e-5 : (tensor<1x5x8xf32>) -> tensor<1x5x8xf32>
  %1 = nn.linear %n, %k : (tensor<1x5x8xf32>, tensor<8x8xf32>) -> tensor<1x5x8xf32>
  %2 = nn.reshape %1 : (tensor<1x5x8xf32>) -> tensor<1x5x2x4xf32>
  %3 = nn.transpose %2 [0, 2, 1, 3] : (tensor<1x5x2x4xf32>) -> tensor<1x2x5x4xf32>
  %4 = nn.linear %n, %q : (tensor<1x5x8xf32>, tensor<24x8xf32>) -> tensor<1x5x24xf32>
  %5 = nn.reshape %4 : (tensor<1x5x24xf32>) -> tensor<1x5x6x4xf32>
  %6 = nn.transpose %5 [0, 2, 1, 3] : (tensor<1x5x6x4xf32>) -> tensor<1x6x5x4xf32>
  %7 = nn.linear %n, %v : (tensor<1x5x8xf32>, tensor<8x8xf32>) -> tensor<1x5x8xf32>
  %8 = nn.reshape %7 : (tensor<1x5x8xf32>) -> tensor<1x5x2x4xf32>
  %9 = nn.transpose %8 [0, 2, 1, 3] : (tensor<1x5x2x4xf32>) -> tensor<1x2x5x4xf32>
  %10 = nn.attention %6, %3, %9 scale 0.5 {causal} : (tensor<1x6x5x4xf32>, tensor<1x2x5x4xf32>, tensor<1x2x5x4xf32>) -> tensor<1x6x5x4xf32>
  %11 = nn.transpose %10 [0, 2, 1, 3] : (tensor<1x6x5x4xf32>) -> tensor<1x5x6x4xf32>
  %12 = nn.reshape %11 : (tensor<1x5x6x4xf32>) -> tensor<1x5x24xf32>
  %13 = nn.linear %12, %o : (tensor<1x5x24xf32>, tensor<8x24xf32>) -> tensor<1x5x8xf32>
  return %13 : tensor<1x5x8xf32>
}

// -----

// Weights that are computed of parameters and constants alone are weights, too.

// CHECK-LABEL: func.func @computed
// CHECK-SAME: tensor<32x16xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "u"}
// CHECK-SAME: tensor<16x32xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, nn.parameter = "d"}
dist.mesh @mesh = <["tp"=4]>
func.func @computed(%x: tensor<3x16xf32> {nn.input = "x"}, %u: tensor<32x16xf32> {nn.parameter = "u"}, %d: tensor<16x32xf32> {nn.parameter = "d"}) -> (tensor<3x16xf32> {nn.output = "y"}) {
  %c = nn.constant dense<16.0> : tensor<f32>
  %us = nn.mul %u, %c : (tensor<32x16xf32>, tensor<f32>) -> tensor<32x16xf32>
  %ur = nn.floor %us : tensor<32x16xf32>
  %h = nn.linear %x, %ur : (tensor<3x16xf32>, tensor<32x16xf32>) -> tensor<3x32xf32>
  %a = nn.relu %h : tensor<3x32xf32>
  %ds = nn.mul %d, %c : (tensor<16x32xf32>, tensor<f32>) -> tensor<16x32xf32>
  %dr = nn.floor %ds : tensor<16x32xf32>
  %y = nn.linear %a, %dr : (tensor<3x32xf32>, tensor<16x32xf32>) -> tensor<3x16xf32>
  return %y : tensor<3x16xf32>
}
