// RUN: sharding-opt %s --plan-graphs=target=gpu:sm_90a --verify-placement | FileCheck %s
// RUN: sharding-opt %s --plan-graphs=target=gpu:sm_90a --plan-graphs=target=gpu:sm_90a | FileCheck %s
// RUN: sharding-opt %s --plan-graphs=target=cpu | FileCheck %s --check-prefix=CPU
// RUN: sharding-opt %s --plan-graphs="target=gpu:sm_90a keep-probed" --verify-placement | FileCheck %s --check-prefix=PROBED

// A processor has no graphs.
// CPU-NOT: rt.graph

dist.mesh @mesh = <["tp"=4]>

// All launches are in one graph, with the collective among them; views and constants may be outside.
// CHECK-LABEL: func.func @all
// CHECK: nn.reshape
// CHECK-NEXT: rt.graph_begin
// CHECK-NEXT: rt.kernel
// CHECK: rt.start
// CHECK-NOT: rt.graph
// CHECK: rt.wait
// CHECK-NOT: rt.graph
// CHECK: rt.kernel
// CHECK: }
// CHECK-NEXT: rt.graph_end
// CHECK-NEXT: return
// Without the probed launch, which is in the middle of a collective, the collective is in no graph.
// PROBED-LABEL: func.func @all
// PROBED: rt.graph_begin
// PROBED-NEXT: rt.kernel
// PROBED: rt.graph_end
// PROBED-NEXT: rt.start
// PROBED-NOT: rt.graph
// PROBED: nn.exp
// PROBED-NOT: rt.graph
// PROBED: rt.wait
// PROBED-NEXT: rt.graph_begin
// PROBED-NEXT: rt.kernel
// PROBED: rt.graph_end
func.func @all(%x: tensor<32xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<128xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>},
        tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  %v = nn.reshape %x : (tensor<32xf32>) -> tensor<4x8xf32>
  %0 = rt.kernel %v : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %k = nn.neg %a : tensor<4x8xf32>
    rt.yield %k : tensor<4x8xf32>
  }
  %f = rt.start %0 stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %k = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %k : tensor<16x8xf32>
  }
  %1 = rt.kernel %v : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %k = nn.exp %a {nn.id = 7 : i64} : tensor<4x8xf32>
    rt.yield %k : tensor<4x8xf32>
  }
  %2 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  %3 = rt.kernel %2 : (tensor<16x8xf32>) -> tensor<16x8xf32> {
  ^bb0(%a: tensor<16x8xf32>):
    %k = nn.relu %a : tensor<16x8xf32>
    rt.yield %k : tensor<16x8xf32>
  }
  return %3, %1 : tensor<16x8xf32>, tensor<4x8xf32>
}

// The host looks at the result of a collective behind its wait.
// CHECK-LABEL: func.func @collective
// CHECK: rt.graph_begin
// PROBED-LABEL: func.func @collective
// PROBED-NOT: rt.graph
func.func @collective(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %k = dist.all_gather %a axes ["tp"] dims [0] {nn.id = 3 : i64} : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %k : tensor<16x8xf32>
  }
  %1 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  return %1 : tensor<16x8xf32>
}

// Nothing to launch.
// CHECK-LABEL: func.func @none
// CHECK-NOT: rt.graph
func.func @none(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  return %x : tensor<4x8xf32>
}

// The host gives copies of true rows their sizes, so it waits for the device.
// CHECK-LABEL: func.func @true_rows
// PROBED-LABEL: func.func @true_rows
// CHECK: rt.graph_begin
// CHECK: nn.neg
// CHECK: rt.graph_end
// CHECK-NOT: rt.graph
// CHECK: dist.compact
// CHECK-NOT: rt.graph
// CHECK: rt.yield
// CHECK: rt.graph_begin
// CHECK: nn.exp
// CHECK: rt.graph_end
func.func @true_rows(%x: tensor<8x2xf32>, %n: tensor<2xi64>) -> tensor<5x2xf32> {
  %0 = rt.kernel %x : (tensor<8x2xf32>) -> tensor<8x2xf32> {
  ^bb0(%a: tensor<8x2xf32>):
    %k = nn.neg %a : tensor<8x2xf32>
    rt.yield %k : tensor<8x2xf32>
  }
  %1 = rt.kernel %0, %n : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<5x2xf32> {
  ^bb0(%a: tensor<8x2xf32>, %b: tensor<2xi64>):
    %k = dist.compact %a counts %b tokens 4 rows 5 dim 0 : (tensor<8x2xf32>, tensor<2xi64>) -> tensor<5x2xf32>
    rt.yield %k : tensor<5x2xf32>
  }
  %2 = rt.kernel %1 : (tensor<5x2xf32>) -> tensor<5x2xf32> {
  ^bb0(%a: tensor<5x2xf32>):
    %k = nn.exp %a : tensor<5x2xf32>
    rt.yield %k : tensor<5x2xf32>
  }
  return %2 : tensor<5x2xf32>
}
