// RUN: sharding-opt %s --verify-placement -split-input-file -verify-diagnostics

// An order has the layout of its first operand, partial sums and padding included. The second may have any.

dist.mesh @mesh = <["tp"=4]>
func.func @passes(
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>},
    %p: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<13x8xf32>},
        tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.after %x, %p : tensor<4x8xf32>, tensor<8xf32>
  %1 = dist.after %p, %x : tensor<8xf32>, tensor<4x8xf32>
  %2 = dist.all_reduce sum %1 axes ["tp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %0, %2 : tensor<4x8xf32>, tensor<8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @partial(
    // expected-note@+1 {{operand 0 is unreduced over {"tp"} from here on}}
    %p: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"tp"}>, dist.global = tensor<8xf32>},
    %y: tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.after %p, %y : tensor<8xf32>, tensor<8xf32>
  // expected-error@+1 {{is not linear in operand 0, which is unreduced over {"tp"}}}
  %1 = nn.exp %0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}
