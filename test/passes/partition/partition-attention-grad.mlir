// RUN: sharding-opt %s --split-input-file --propagate-shardings --partition --verify-placement | FileCheck %s

// The tokens of queries are sharded, and padded: gradients of keys and values are sums over the
// ranks, that of the queries is not. Padding adds zero, as cotangents, delta and queries are zero
// there.

// CHECK-LABEL: func.func @queries
// CHECK-SAME: -> (tensor<2x4x4x8xf32>
// CHECK: %[[Q:.*]] = nn.select %{{.*}}, %{{.*}}, %{{.*}} : {{.*}} -> tensor<2x4x4x8xf32>
// CHECK: %[[D:.*]] = nn.select %{{.*}}, %{{.*}}, %{{.*}} : {{.*}} -> tensor<2x4x4xf32>
// CHECK: %[[C:.*]] = nn.select %{{.*}}, %{{.*}}, %{{.*}} : {{.*}} -> tensor<2x4x4x8xf32>
// CHECK: %[[DQ:.*]], %[[DK:.*]], %[[DV:.*]] = nn.attention_grad %[[Q]], %arg1, %arg2 lse %arg3 delta %[[D]] cotangent %[[C]]
// CHECK-DAG: %[[K:.*]] = dist.all_reduce sum %[[DK]] axes ["a"]
// CHECK-DAG: %[[V:.*]] = dist.all_reduce sum %[[DV]] axes ["a"]
// CHECK: return %[[DQ]], %[[K]], %[[V]]
dist.mesh @mesh = <["a"=2]>
func.func @queries(%q: tensor<2x4x7x8xf32> {nn.input = "q", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>},
                   %k: tensor<2x2x9x8xf32> {nn.input = "k"}, %v: tensor<2x2x9x8xf32> {nn.input = "v"},
                   %l: tensor<2x4x7xf32> {nn.input = "l"}, %d: tensor<2x4x7xf32> {nn.input = "d"}, %c: tensor<2x4x7x8xf32> {nn.input = "c"})
    -> (tensor<2x4x7x8xf32> {nn.output = "dq"}, tensor<2x2x9x8xf32> {nn.output = "dk"}, tensor<2x2x9x8xf32> {nn.output = "dv"}) {
  %one = nn.constant dense<1.0> : tensor<1xf32>
  %q1 = nn.add %q, %one : (tensor<2x4x7x8xf32>, tensor<1xf32>) -> tensor<2x4x7x8xf32>
  %d1 = nn.add %d, %one : (tensor<2x4x7xf32>, tensor<1xf32>) -> tensor<2x4x7xf32>
  %c1 = nn.add %c, %one : (tensor<2x4x7x8xf32>, tensor<1xf32>) -> tensor<2x4x7x8xf32>
  %r:3 = nn.attention_grad %q1, %k, %v lse %l delta %d1 cotangent %c1 scale 0.5 : (tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>)
  return %r#0, %r#1, %r#2 : tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>
}

// -----

// Each rank has one row of the batch. The bias is the same for all rows, so its gradient is a sum;
// the others are not.

// CHECK-LABEL: func.func @bias
// CHECK: %[[G:.*]], %[[DK:.*]], %[[DV:.*]], %[[DB:.*]] = nn.attention_grad {{.*}} -> (tensor<1x4x7x8xf32>, tensor<1x2x9x8xf32>, tensor<1x2x9x8xf32>, tensor<1x4x7x9xf32>)
// CHECK: %[[B:.*]] = dist.all_reduce sum %[[DB]] axes ["a"]
// CHECK: return %[[G]], %[[DK]], %[[DV]], %[[B]]
dist.mesh @mesh = <["a"=2]>
func.func @bias(%q: tensor<2x4x7x8xf32> {nn.input = "q", dist.sharding = #dist.sharding<@mesh, [{"a"}, {}, {}, {}]>},
                %k: tensor<2x2x9x8xf32> {nn.input = "k"}, %v: tensor<2x2x9x8xf32> {nn.input = "v"}, %b: tensor<1x4x7x9xf32> {nn.input = "b"},
                %l: tensor<2x4x7xf32> {nn.input = "l"}, %d: tensor<2x4x7xf32> {nn.input = "d"}, %c: tensor<2x4x7x8xf32> {nn.input = "c"})
    -> (tensor<2x4x7x8xf32> {nn.output = "dq"}, tensor<2x2x9x8xf32> {nn.output = "dk"}, tensor<2x2x9x8xf32> {nn.output = "dv"}, tensor<1x4x7x9xf32> {nn.output = "db"}) {
  %r:4 = nn.attention_grad %q, %k, %v bias %b lse %l delta %d cotangent %c scale 0.5 : (tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<1x4x7x9xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<1x4x7x9xf32>)
  return %r#0, %r#1, %r#2, %r#3 : tensor<2x4x7x8xf32>, tensor<2x2x9x8xf32>, tensor<2x2x9x8xf32>, tensor<1x4x7x9xf32>
}

// -----

// With keys of its own, a rank does not have all of them.

// CHECK-LABEL: func.func @keys
// CHECK: nn.attention_grad {{.*}} scale 5.000000e-01 : (tensor<2x4x7x8xf32>, tensor<2x2x4x8xf32>
dist.mesh @mesh = <["a"=2]>
func.func @keys(%q: tensor<2x4x7x8xf32> {nn.input = "q"},
                %k: tensor<2x2x8x8xf32> {nn.input = "k", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>},
                %v: tensor<2x2x8x8xf32> {nn.input = "v", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>},
                %l: tensor<2x4x7xf32> {nn.input = "l"}, %d: tensor<2x4x7xf32> {nn.input = "d"}, %c: tensor<2x4x7x8xf32> {nn.input = "c"})
    -> (tensor<2x2x8x8xf32> {nn.output = "dk", dist.sharding = #dist.sharding<@mesh, [{}, {}, {"a"}, {}]>}) {
  %r:3 = nn.attention_grad %q, %k, %v lse %l delta %d cotangent %c scale 0.5 {nn.whole_keys} : (tensor<2x4x7x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>, tensor<2x4x7xf32>, tensor<2x4x7xf32>, tensor<2x4x7x8xf32>) -> (tensor<2x4x7x8xf32>, tensor<2x2x8x8xf32>, tensor<2x2x8x8xf32>)
  return %r#1 : tensor<2x2x8x8xf32>
}

// -----

// Three heads of keys are padded to four, and two query heads belong to each. The gradient of a bias
// that all heads share sums over both. The padding of six query heads in eight places is that of the
// heads of keys.

// CHECK-LABEL: func.func @shared_bias
// CHECK: %[[M:.*]] = dist.positions <6 pad 8{"a"}> : tensor<4xi64>
// CHECK: %[[Q:.*]] = nn.select %{{.*}}, %{{.*}}, %{{.*}} : {{.*}} -> tensor<1x4x7x8xf32>
// CHECK: nn.attention_grad %[[Q]]
// CHECK-SAME: -> (tensor<1x4x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x2x7x8xf32>, tensor<1x1x7x7xf32>)
// CHECK: dist.all_reduce sum %{{.*}} axes ["a"] : (tensor<1x1x7x7xf32>)
dist.mesh @mesh = <["a"=2]>
func.func @shared_bias(%q: tensor<1x6x7x8xf32> {nn.input = "q"}, %k: tensor<1x3x7x8xf32> {nn.input = "k", dist.sharding = #dist.sharding<@mesh, [{}, {"a"}, {}, {}]>},
                       %b: tensor<1x1x7x7xf32> {nn.parameter = "b"}, %l: tensor<1x6x7xf32> {nn.input = "l"})
    -> (tensor<1x1x7x7xf32> {nn.output = "db"}) {
  %e = nn.exp %q : tensor<1x6x7x8xf32>
  %r:4 = nn.attention_grad %e, %k, %k bias %b lse %l delta %l cotangent %q scale 0.5 : (tensor<1x6x7x8xf32>, tensor<1x3x7x8xf32>, tensor<1x3x7x8xf32>, tensor<1x1x7x7xf32>, tensor<1x6x7xf32>, tensor<1x6x7xf32>, tensor<1x6x7x8xf32>) -> (tensor<1x6x7x8xf32>, tensor<1x3x7x8xf32>, tensor<1x3x7x8xf32>, tensor<1x1x7x7xf32>)
  return %r#3 : tensor<1x1x7x7xf32>
}
