// RUN: sharding-opt %s --verify-placement -split-input-file -verify-diagnostics -o %t

dist.mesh @mesh = <["tp"=4]>
func.func @begins(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %0 : tensor<16x8xf32>
  }
  // expected-error@+1 {{'rt.graph_begin' op has a collective in flight: expected none}}
  rt.graph_begin
  %0 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  rt.graph_end
  return
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @ends(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  rt.graph_begin
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %0 : tensor<16x8xf32>
  }
  // expected-error@+1 {{'rt.graph_end' op has a collective in flight: expected none}}
  rt.graph_end
  %0 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  return
}

// -----

func.func @nested() {
  // expected-note@+1 {{the other begins here}}
  rt.graph_begin
  // expected-error@+1 {{'rt.graph_begin' op is in another graph: expected it outside}}
  rt.graph_begin
  rt.graph_end
  return
}

// -----

func.func @unbegun() {
  // expected-error@+1 {{'rt.graph_end' op ends no graph: expected an rt.graph_begin before it}}
  rt.graph_end
  return
}

// -----

func.func @unended() {
  // expected-error@+1 {{'rt.graph_begin' op is never ended: expected an rt.graph_end}}
  rt.graph_begin
  return
}
