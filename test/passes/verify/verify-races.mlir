// RUN: sharding-opt %s --plan-buffers --verify-placement | FileCheck %s

// Two collectives in flight on streams of their own, beside kernels that write over
// what they read. verify-races-mutations.test changes this program.

// CHECK: rt.arena
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @main(%x: tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}], unreduced = {"tp"}>, dist.global = tensor<32x64xf32>},
                %y: tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<32x64xf32>})
    -> (tensor<16x64xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<32x64xf32>},
        tensor<32x64xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<32x64xf32>}) attributes {dist.spmd = @mesh} {
  %0 = rt.kernel %x : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.neg %a : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %f = rt.start %0 stream 1 : (tensor<16x64xf32>) -> !rt.future<tensor<16x64xf32>> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = dist.all_reduce sum %a axes ["tp"] : (tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %1 = rt.kernel %y : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.softmax %a dim 1 : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %g = rt.start %1 stream 2 : (tensor<16x64xf32>) -> !rt.future<tensor<32x64xf32>> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = dist.all_gather %a axes ["dp"] dims [0] : (tensor<16x64xf32>) -> tensor<32x64xf32>
    rt.yield %k : tensor<32x64xf32>
  }
  %2 = rt.kernel %1, %y : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>, %b: tensor<16x64xf32>):
    %k = nn.mul %a, %b : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %3 = rt.kernel %2 : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.exp %a : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %4 = rt.wait %f : !rt.future<tensor<16x64xf32>>
  %5 = rt.kernel %4, %3 : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>, %b: tensor<16x64xf32>):
    %k = nn.add %a, %b : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %h = rt.start %5 stream 1 : (tensor<16x64xf32>) -> !rt.future<tensor<16x64xf32>> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = dist.permute %a axes ["tp"] shift 1 : (tensor<16x64xf32>) -> tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  %6 = rt.wait %g : !rt.future<tensor<32x64xf32>>
  %7 = rt.kernel %6 : (tensor<32x64xf32>) -> tensor<32x64xf32> {
  ^bb0(%a: tensor<32x64xf32>):
    %k = nn.softmax %a dim 1 : tensor<32x64xf32>
    rt.yield %k : tensor<32x64xf32>
  }
  %8 = rt.wait %h : !rt.future<tensor<16x64xf32>>
  %9 = rt.kernel %8 : (tensor<16x64xf32>) -> tensor<16x64xf32> {
  ^bb0(%a: tensor<16x64xf32>):
    %k = nn.softmax %a dim 1 : tensor<16x64xf32>
    rt.yield %k : tensor<16x64xf32>
  }
  return %9, %7 : tensor<16x64xf32>, tensor<32x64xf32>
}
