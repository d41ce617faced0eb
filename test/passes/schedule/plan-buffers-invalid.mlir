// RUN: sharding-opt %s --plan-buffers -split-input-file -verify-diagnostics -o %t

func.func private @elsewhere(!rt.future<tensor<16x8xf32>>)
dist.mesh @mesh = <["tp"=4]>
func.func @handed_on(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %0 : tensor<16x8xf32>
  }
  // expected-error@+1 {{uses a collective in flight: expected only rt.wait}}
  call @elsewhere(%f) : (!rt.future<tensor<16x8xf32>>) -> ()
  return
}

// -----

// A launch is missing: what it would compute has no place.
func.func @unformed(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{is not in a launch: expected '--form-kernels' to have run}}
  %0 = nn.neg %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
