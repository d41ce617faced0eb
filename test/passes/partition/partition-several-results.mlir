// RUN: sharding-opt %s --propagate-shardings --partition | FileCheck %s

// Each result of an op has a sharding of its own.
// CHECK: func.func @main({{.*}}) -> (tensor<1x2x6x8xf32> {{{.*}}[{}, {"tp"}, {}, {}]{{.*}}}, tensor<1x2x6xf32> {{{.*}}[{}, {"tp"}, {}]
// CHECK: %[[O:.*]], %[[L:.*]] = nn.attention {{.*}} -> (tensor<1x2x6x8xf32>, tensor<1x2x6xf32>)
// CHECK: return %[[O]], %[[L]]
dist.mesh @mesh = <["tp"=2]>
func.func @main(%q: tensor<1x4x6x8xf32> {nn.input = "q", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>}, %k: tensor<1x4x6x8xf32> {nn.input = "k", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>}) -> (tensor<1x4x6x8xf32> {nn.output = "o"}, tensor<1x4x6xf32> {nn.output = "l"}) {
  %o, %l = nn.attention %q, %k, %k scale 0.5 : (tensor<1x4x6x8xf32>, tensor<1x4x6x8xf32>, tensor<1x4x6x8xf32>) -> (tensor<1x4x6x8xf32>, tensor<1x4x6xf32>)
  return %o, %l : tensor<1x4x6x8xf32>, tensor<1x4x6xf32>
}
