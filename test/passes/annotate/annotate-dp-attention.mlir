// RUN: sharding-opt %s --split-input-file --annotate-dp-attention="groups=2" | FileCheck %s --check-prefixes=CHECK,ALL
// RUN: sharding-opt %s --split-input-file --annotate-dp-attention="groups=2 dense-tp=1 lm-head=on" | FileCheck %s --check-prefixes=CHECK,ONE
// RUN: sharding-opt %s --split-input-file --annotate-dp-attention="groups=2 lm-head=off" --annotate-scatter-modes="mode=on" | FileCheck %s --check-prefixes=STREAM

// Two groups of two ranks: the groups split the batch, the ranks of a group the heads, and all ranks
// the features of the MLP or none. The vocabulary is split over a group or over all.

// ALL: dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 4 : i64, groups = 2 : i64
// ONE: dist.mesh @mesh = <["tp"=4]> {dist.dp_attention = {dense_tp = 1 : i64, groups = 2 : i64, own_head = true}}
// CHECK: func.func @block(
// CHECK-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}]>, nn.input = "x"
// CHECK-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp":(2)2}, {}]>, nn.parameter = "q"
// CHECK-SAME: dist.sharding = #dist.sharding<@mesh, [{}, {"tp":(2)2}]>, nn.parameter = "o"
// ALL-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "up"
// ALL-SAME: dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, nn.parameter = "down"
// ONE-SAME: tensor<24x8xf32> {nn.parameter = "up"
// ONE-SAME: tensor<8x24xf32> {nn.parameter = "down"
// ONE-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp":(2)2}, {}]>, nn.parameter = "head"

// The residual stream has the tokens of a rank: of whole sequences, where all ranks have equally many.

// STREAM: func.func @block(
// STREAM-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, nn.parameter = "head"
// STREAM: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>
// STREAM: nn.add {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>
// STREAM: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{}, {}, {"tp"}]>
// STREAM: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}, {}]>
dist.mesh @mesh = <["tp"=4]>
func.func @block(%x: tensor<4x6x8xf32> {nn.input = "x"}, %q: tensor<8x8xf32> {nn.parameter = "q"},
                %o: tensor<8x8xf32> {nn.parameter = "o"}, %up: tensor<24x8xf32> {nn.parameter = "up"},
                %down: tensor<8x24xf32> {nn.parameter = "down"}, %head: tensor<40x8xf32> {nn.parameter = "head"})
    -> (tensor<4x6x40xf32> {nn.output = "logits"}) {
  %0 = nn.linear %x, %q : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %1 = nn.reshape %0 : (tensor<4x6x8xf32>) -> tensor<4x6x4x2xf32>
  %2 = nn.transpose %1 [0, 2, 1, 3] : (tensor<4x6x4x2xf32>) -> tensor<4x4x6x2xf32>
  %3 = nn.attention %2, %2, %2 scale 1.0 {causal}
    : (tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>, tensor<4x4x6x2xf32>) -> tensor<4x4x6x2xf32>
  %4 = nn.transpose %3 [0, 2, 1, 3] : (tensor<4x4x6x2xf32>) -> tensor<4x6x4x2xf32>
  %5 = nn.reshape %4 : (tensor<4x6x4x2xf32>) -> tensor<4x6x8xf32>
  %6 = nn.linear %5, %o : (tensor<4x6x8xf32>, tensor<8x8xf32>) -> tensor<4x6x8xf32>
  %7 = nn.add %x, %6 : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %8 = nn.linear %7, %up : (tensor<4x6x8xf32>, tensor<24x8xf32>) -> tensor<4x6x24xf32>
  %9 = nn.relu %8 : tensor<4x6x24xf32>
  %10 = nn.linear %9, %down : (tensor<4x6x24xf32>, tensor<8x24xf32>) -> tensor<4x6x8xf32>
  %11 = nn.add %7, %10 : (tensor<4x6x8xf32>, tensor<4x6x8xf32>) -> tensor<4x6x8xf32>
  %12 = nn.linear %11, %head : (tensor<4x6x8xf32>, tensor<40x8xf32>) -> tensor<4x6x40xf32>
  return %12 : tensor<4x6x40xf32>
}

// -----

// A batch that data parallelism has split, and an input that is no batch.

// CHECK: func.func @batch(
// CHECK-SAME: dist.sharding = #dist.sharding<@mesh, [{"dp", "tp":(1)2}, {}]>, nn.input = "x"
// CHECK-SAME: tensor<3x8xf32> {nn.input = "t"}
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @batch(%x: tensor<6x8xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>},
                 %t: tensor<3x8xf32> {nn.input = "t"}) -> (tensor<6x8xf32> {nn.output = "y"}) {
  %0 = nn.relu %x : tensor<6x8xf32>
  return %0 : tensor<6x8xf32>
}

// -----

// One sequence on each group: its tokens are split.

// STREAM: func.func @sequence(
// STREAM: nn.linear {{.*}}dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {"tp":(2)2}, {}]>
dist.mesh @mesh = <["tp"=4]>
func.func @sequence(%x: tensor<2x6x8xf32> {nn.input = "x"}, %up: tensor<24x8xf32> {nn.parameter = "up"},
                    %down: tensor<8x24xf32> {nn.parameter = "down"}) -> (tensor<2x6x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %up : (tensor<2x6x8xf32>, tensor<24x8xf32>) -> tensor<2x6x24xf32>
  %1 = nn.relu %0 : tensor<2x6x24xf32>
  %2 = nn.linear %1, %down : (tensor<2x6x24xf32>, tensor<8x24xf32>) -> tensor<2x6x8xf32>
  %3 = nn.add %x, %2 : (tensor<2x6x8xf32>, tensor<2x6x8xf32>) -> tensor<2x6x8xf32>
  return %3 : tensor<2x6x8xf32>
}

// -----

// A step of serving: groups of requests are the groups of ranks, and heads of paged attention are split
// over the ranks of a group.

// CHECK: func.func @step(
// CHECK-SAME: tensor<2x3x2x1x4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}, {}, {}]>, nn.input = "pages"
// CHECK-SAME: dist.sharding = #dist.sharding<@mesh, [{"tp":(2)2}, {}]>, nn.parameter = "q"
dist.mesh @mesh = <["tp"=4]>
func.func @step(%pages: tensor<2x3x2x1x4xf32> {nn.input = "pages"}, %x: tensor<2x5x8xf32> {nn.input = "x"},
                %t: tensor<2x1x2xi64> {nn.input = "tables"}, %s: tensor<2x2xi64> {nn.input = "starts"},
                %l: tensor<2x1xi64> {nn.input = "lengths"}, %q: tensor<8x8xf32> {nn.parameter = "q"},
                %o: tensor<8x8xf32> {nn.parameter = "o"}) -> (tensor<2x5x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %q : (tensor<2x5x8xf32>, tensor<8x8xf32>) -> tensor<2x5x8xf32>
  %1 = nn.reshape %0 : (tensor<2x5x8xf32>) -> tensor<2x5x2x4xf32>
  %2 = nn.paged_attention %1, %pages, %pages tables %t starts %s lengths %l scale 1.0
    : (tensor<2x5x2x4xf32>, tensor<2x3x2x1x4xf32>, tensor<2x3x2x1x4xf32>, tensor<2x1x2xi64>, tensor<2x2xi64>, tensor<2x1xi64>) -> tensor<2x5x2x4xf32>
  %3 = nn.reshape %2 : (tensor<2x5x2x4xf32>) -> tensor<2x5x8xf32>
  %4 = nn.linear %3, %o : (tensor<2x5x8xf32>, tensor<8x8xf32>) -> tensor<2x5x8xf32>
  return %4 : tensor<2x5x8xf32>
}
