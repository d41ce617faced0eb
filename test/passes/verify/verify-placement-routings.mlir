// RUN: sharding-opt %s --parallelize="mesh=ep=2" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=tp=2" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=3" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=4 expert-parallel=dp expert-capacity=0.5" --verify-placement --schedule -o /dev/null
// RUN: sharding-opt %s --parallelize="mesh=dp=2,ep=2" --compact-rows | FileCheck %s --check-prefix=ROWS

// Two layers of experts, and the gradients of their weights. Each layer has a routing of its own.
// ROWS: nn.route
// ROWS: nn.route
// ROWS-NOT: nn.route
func.func @main(%x: tensor<4x6x16xf32> {nn.input = "x"}, %g: tensor<4x6x16xf32> {nn.input = "g"},
                %a: tensor<8x16xf32> {nn.parameter = "a"}, %b: tensor<8x16xf32> {nn.parameter = "b"},
                %u: tensor<8x16x16xf32> {nn.parameter = "u"}, %v: tensor<8x16x16xf32> {nn.parameter = "v"})
    -> (tensor<4x6x16xf32> {nn.output = "y"}, tensor<8x16x16xf32> {nn.output = "du"}, tensor<8x16x16xf32> {nn.output = "dv"}) {
  %s = nn.linear %x, %a : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %p = nn.softmax %s dim 2 : tensor<4x6x8xf32>
  %i = nn.top_k %p {k = 2 : i64} : (tensor<4x6x8xf32>) -> tensor<4x6x2xi64>
  %n = nn.take_along %p, %i dim 2 : (tensor<4x6x8xf32>, tensor<4x6x2xi64>) -> tensor<4x6x2xf32>
  %r = nn.dispatch %x, %i : (tensor<4x6x16xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %m = nn.dispatch %n, %i {each} : (tensor<4x6x2xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6xf32, #nn.routed<2>>
  %w = nn.reshape %m : (tensor<8x4x6xf32, #nn.routed<2>>) -> tensor<8x4x6x1xf32, #nn.routed<2>>
  %h = nn.grouped_linear %r, %u : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x16x16xf32>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %o = nn.mul %h, %w : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x4x6x1xf32, #nn.routed<2>>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %z = nn.combine %o, %i : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<4x6x2xi64>) -> tensor<4x6x16xf32>
  %t = nn.linear %z, %b : (tensor<4x6x16xf32>, tensor<8x16xf32>) -> tensor<4x6x8xf32>
  %j = nn.top_k %t {k = 2 : i64} : (tensor<4x6x8xf32>) -> tensor<4x6x2xi64>
  %q = nn.dispatch %z, %j : (tensor<4x6x16xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %k = nn.grouped_linear %q, %v : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x16x16xf32>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %y = nn.combine %k, %j : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<4x6x2xi64>) -> tensor<4x6x16xf32>
  %c = nn.dispatch %g, %j : (tensor<4x6x16xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %dv = nn.grouped_weight_grad %c, %q : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x4x6x16xf32, #nn.routed<2>>) -> tensor<8x16x16xf32>
  %e = nn.grouped_linear %c, %v {in_out} : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x16x16xf32>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %f = nn.combine %e, %j : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<4x6x2xi64>) -> tensor<4x6x16xf32>
  %d = nn.dispatch %f, %i : (tensor<4x6x16xf32>, tensor<4x6x2xi64>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %l = nn.mul %d, %w : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x4x6x1xf32, #nn.routed<2>>) -> tensor<8x4x6x16xf32, #nn.routed<2>>
  %du = nn.grouped_weight_grad %l, %r : (tensor<8x4x6x16xf32, #nn.routed<2>>, tensor<8x4x6x16xf32, #nn.routed<2>>) -> tensor<8x16x16xf32>
  return %y, %du, %dv : tensor<4x6x16xf32>, tensor<8x16x16xf32>, tensor<8x16x16xf32>
}
