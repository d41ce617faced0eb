// RUN: sharding-opt %s --plan-buffers --verify-placement | FileCheck %s

// Data, weights and gradients over the same axes, all in flight at once on streams of their own.
// verify-races-mutations.test changes this program.

// CHECK: rt.arena
dist.mesh @mesh = <["dp"=4]>
func.func @main(%x: tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"dp"}>, dist.global = tensor<16x64xf32>},
                %w: tensor<4x64xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x64xf32>})
    -> (tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<16x64xf32>},
        tensor<4x64xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<16x64xf32>}) attributes {dist.spmd = @mesh} {
  %f = rt.start %w stream 1 : (tensor<4x64xf32>) -> !rt.future<tensor<16x64xf32>> {
  ^bb0(%a: tensor<4x64xf32>):
    %k = dist.all_gather %a axes ["dp"] dims [0] role weights : (tensor<4x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %0 = rt.kernel %x : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.neg %a : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %g = rt.start %0 stream 2 : (tensor<16x64xf32>) -> !rt.future<tensor<16x64xf32>> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = dist.all_reduce sum %a axes ["dp"] : (tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %1 = rt.kernel %0, %x : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>, %b: tensor<16x64xf32>):
    %k = nn.add %a, %b : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %h = rt.start %1 stream 3 : (tensor<16x64xf32>) -> !rt.future<tensor<4x64xf32>> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = dist.reduce_scatter sum %a axes ["dp"] dims [0] role gradients : (tensor<16x64xf32>) -> tensor<4x64xf32>
    rt.yield %k : tensor<4x64xf32>
  }
  %2 = rt.wait %g : !rt.future<tensor<16x64xf32>>
  %3 = rt.kernel %2 : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.softmax %a dim 1 : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %4 = rt.wait %f : !rt.future<tensor<16x64xf32>>
  %5 = rt.kernel %3, %4 : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>, %b: tensor<16x64xf32>):
    %k = nn.mul %a, %b : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %6 = rt.wait %h : !rt.future<tensor<4x64xf32>>
  return %5, %6 : tensor<16x64xf32>, tensor<4x64xf32>
}
