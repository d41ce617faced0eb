// RUN: sharding-opt %s --verify-roundtrip -split-input-file | FileCheck %s
// RUN: sharding-opt %s -split-input-file --mlir-print-op-generic | sharding-opt -split-input-file | FileCheck %s

// CHECK-LABEL: func.func @kernels
// CHECK-SAME: attributes {rt.arena = 256 : i64, rt.live = 256 : i64}
func.func @kernels(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) attributes {rt.arena = 256 : i64, rt.live = 256 : i64} {
  // CHECK: %[[PAIR:.*]]:2 = rt.kernel %{{.*}} at [0, 128] : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  // CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<4x8xf32>):
  // CHECK-NEXT: %[[NEG:.*]] = nn.neg %[[A]]
  // CHECK-NEXT: %[[EXP:.*]] = nn.exp %[[A]]
  // CHECK-NEXT: rt.yield %[[EXP]], %[[NEG]] : tensor<4x8xf32>, tensor<4x8xf32>
  %0:2 = rt.kernel %x at [0, 128] : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %1 = nn.neg %a : tensor<4x8xf32>
    %2 = nn.exp %a : tensor<4x8xf32>
    rt.yield %2, %1 : tensor<4x8xf32>, tensor<4x8xf32>
  }
  return %0#0, %0#1 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// The last offset counts the rows of the result.
// CHECK-LABEL: func.func @counted
func.func @counted(%x: tensor<6x8xf32>, %n: tensor<3xi64>) -> tensor<6x8xf32> {
  // CHECK: rt.kernel %{{.*}}, %{{.*}} at [0] counted_by 1 : (tensor<6x8xf32>, tensor<3xi64>) -> tensor<6x8xf32> {
  %0 = rt.kernel %x, %n at [0] counted_by 1 : (tensor<6x8xf32>, tensor<3xi64>) -> tensor<6x8xf32> {
  ^bb0(%a: tensor<6x8xf32>, %b: tensor<3xi64>):
    %1 = nn.neg %a : tensor<6x8xf32>
    rt.yield %1 : tensor<6x8xf32>
  }
  return %0 : tensor<6x8xf32>
}

// -----

// Without operands, and with an attribute of another dialect.
// CHECK-LABEL: func.func @nothing
func.func @nothing() -> tensor<8xi64> {
  // CHECK: rt.kernel attributes {test.note} : () -> tensor<8xi64> {
  // CHECK-NEXT: nn.iota
  %0 = rt.kernel attributes {test.note} : () -> tensor<8xi64> {
    %1 = nn.iota dim 0 : tensor<8xi64>
    rt.yield %1 : tensor<8xi64>
  }
  return %0 : tensor<8xi64>
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// CHECK-LABEL: func.func @collectives
func.func @collectives(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>},
                       %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<4xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>},
        tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // CHECK: %[[F:.*]] = rt.start %{{.*}}, %{{.*}} stream 2 at [0, 128] : (tensor<4x8xf32>, tensor<4xf32>) -> !rt.future<tensor<4x8xf32>, tensor<4xf32>> {
  // CHECK-NEXT: ^bb0
  // CHECK-NEXT: %[[SUM:.*]]:2 = dist.all_reduce
  // CHECK-NEXT: rt.yield %[[SUM]]#0, %[[SUM]]#1
  %f = rt.start %x, %y stream 2 at [0, 128] : (tensor<4x8xf32>, tensor<4xf32>) -> !rt.future<tensor<4x8xf32>, tensor<4xf32>> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<4xf32>):
    %0:2 = dist.all_reduce sum %a, %b axes ["tp"] : (tensor<4x8xf32>, tensor<4xf32>) -> (tensor<4x8xf32>, tensor<4xf32>)
    rt.yield %0#0, %0#1 : tensor<4x8xf32>, tensor<4xf32>
  }
  // CHECK: %[[G:.*]]:2 = rt.wait %[[F]] : !rt.future<tensor<4x8xf32>, tensor<4xf32>>
  %g:2 = rt.wait %f : !rt.future<tensor<4x8xf32>, tensor<4xf32>>
  // CHECK: return %[[G]]#0, %[[G]]#1
  return %g#0, %g#1 : tensor<4x8xf32>, tensor<4xf32>
}

// -----

// CHECK-LABEL: func.func @prepared
func.func @prepared(%w: tensor<96x64xbf16> {nn.parameter = "w"}, %v: tensor<64x96xf32> {nn.parameter = "v"}) {
  // CHECK: rt.prepare %{{.*}} <k = 64, n = 96, transposed = true, panel = 32, group = 2> at load : tensor<96x64xbf16>
  %0 = rt.prepare %w <k = 64, n = 96, transposed = true, panel = 32, group = 2> at load : tensor<96x64xbf16>
  // CHECK: rt.prepare %{{.*}} <k = 64, n = 96, panel = 16> at load : tensor<64x96xf32>
  %1 = rt.prepare %v <k = 64, n = 96, panel = 16> at load : tensor<64x96xf32>
  // CHECK: rt.prepare %{{.*}} at load : tensor<64x96xf32> -> tensor<64x96xbf16>
  %2 = rt.prepare %v at load : tensor<64x96xf32> -> tensor<64x96xbf16>
  // CHECK: rt.prepare %{{.*}} <k = 64, n = 96, panel = 16, group = 2> at load : tensor<64x96xf32> -> tensor<64x96xbf16>
  %3 = rt.prepare %v <k = 64, n = 96, panel = 16, group = 2> at load : tensor<64x96xf32> -> tensor<64x96xbf16>
  return
}

// -----

// At use, any value is packed by a launch.
// CHECK-LABEL: func.func @prepared_at_use
func.func @prepared_at_use(%x: tensor<4x64xf32>, %w: tensor<96x64xf32>, %y: tensor<4xf32>) -> tensor<4x96xf32> {
  // CHECK: %[[P:.*]] = rt.kernel %{{.*}} : (tensor<96x64xf32>) -> tensor<96x64xf32> {
  // CHECK: rt.prepare %{{.*}} <k = 64, n = 96, transposed = true, panel = 16> at use : tensor<96x64xf32>
  %0 = rt.kernel %w : (tensor<96x64xf32>) -> tensor<96x64xf32> {
  ^bb0(%a: tensor<96x64xf32>):
    %3 = rt.prepare %a <k = 64, n = 96, transposed = true, panel = 16> at use : tensor<96x64xf32>
    rt.yield %3 : tensor<96x64xf32>
  }
  %1 = dist.after %0, %y : tensor<96x64xf32>, tensor<4xf32>
  %2 = rt.kernel %x, %1 : (tensor<4x64xf32>, tensor<96x64xf32>) -> tensor<4x96xf32> {
  ^bb0(%a: tensor<4x64xf32>, %b: tensor<96x64xf32>):
    %3 = nn.linear %a, %b : (tensor<4x64xf32>, tensor<96x64xf32>) -> tensor<4x96xf32>
    rt.yield %3 : tensor<4x96xf32>
  }
  return %2 : tensor<4x96xf32>
}

// -----

// CHECK-LABEL: func.func @graphs
func.func @graphs(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  // CHECK: rt.graph_begin{{$}}
  rt.graph_begin
  %0 = rt.kernel %x : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %1 = nn.neg %a : tensor<4x8xf32>
    rt.yield %1 : tensor<4x8xf32>
  }
  // CHECK: rt.graph_end{{$}}
  rt.graph_end
  return %0 : tensor<4x8xf32>
}
