// RUN: sharding-opt %s --annotate-gtp | FileCheck %s
// RUN: sharding-opt %s --annotate-gtp="axes=none" | FileCheck %s --check-prefix=NONE
// RUN: sharding-opt %s --annotate-gtp="align=4" | FileCheck %s --check-prefix=ALIGN
// RUN: not sharding-opt %s --annotate-gtp="axes=none option=gtp-keep" 2>&1 | FileCheck %s --check-prefix=OPTION
// RUN: sharding-opt %s --annotate-gtp='axes="gtp,tp" rules={"w": [], "a": ["gtp"], "*": ["gtp", "tp"]}' | FileCheck %s --check-prefix=RULES
// RUN: not sharding-opt %s --annotate-gtp='rules={"nothing": ["gtp"]}' 2>&1 | FileCheck %s --check-prefix=UNMATCHED
// RUN: not sharding-opt %s --annotate-gtp='rules={"w": "gtp]"}' 2>&1 | FileCheck %s --check-prefix=MALFORMED
// RUN: not sharding-opt %s --annotate-gtp="align=0" 2>&1 | FileCheck %s --check-prefix=ZERO

// Storage has rows of its own; a vector and a weight of one row stay whole. One fetch serves all uses, before the first.

// CHECK-LABEL: func.func @main
// CHECK-SAME: [[W:%[a-z0-9]+]]: tensor<5x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {}]>, nn.parameter = "w"}
// CHECK-SAME: tensor<1x5xf32> {nn.parameter = "one"}
// CHECK-SAME: tensor<5xf32> {nn.parameter = "b"}
// CHECK: nn.exp
// CHECK-NEXT: [[U:%.+]] = dist.fetch [[W]] : tensor<5x8xf32>
// CHECK-NEXT: nn.linear {{.*}}, [[U]]
// CHECK: nn.linear {{.*}}, [[U]] {in_out}
// CHECK-NOT: dist.fetch
// NONE-NOT: dist.fetch
// ALIGN: dist.fetch {{.*}} align 4 : tensor<5x8xf32>
// OPTION: error: gtp-keep: expected an axis to store weights in shards over, as by gtp=dp or an axis "gtp" of the mesh
// RULES-LABEL: func.func @main
// RULES-SAME: tensor<5x8xf32> {nn.parameter = "w"}
// RULES-NOT: dist.fetch
// RULES-LABEL: func.func @parts
// RULES-SAME: [(2{"tp"}, 5 pad 6{"gtp"}), {}]>, nn.parameter = "a"}
// RULES-LABEL: func.func @step
// RULES-SAME: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"gtp", "tp"}, {}]>, nn.parameter = "p"
// UNMATCHED: error: gtp: expected a pattern that matches a weight, got "nothing"
// MALFORMED: gtp: the axes of 'w' are 'gtp]': expected {"pattern": ["axis", ...], ...}
// ZERO: expected auto or a number from 1 to 1048576, got '0'
dist.mesh @mesh = <["gtp"=2, "tp"=2]>
func.func @main(%x: tensor<4x8xf32> {nn.input = "x"}, %w: tensor<5x8xf32> {nn.parameter = "w"},
                %one: tensor<1x5xf32> {nn.parameter = "one"}, %b: tensor<5xf32> {nn.parameter = "b"}) -> (tensor<4x8xf32>, tensor<4x1xf32>) {
  %e = nn.exp %x : tensor<4x8xf32>
  %0 = nn.linear %e, %w bias %b : (tensor<4x8xf32>, tensor<5x8xf32>, tensor<5xf32>) -> tensor<4x5xf32>
  %1 = nn.linear %0, %one : (tensor<4x5xf32>, tensor<1x5xf32>) -> tensor<4x1xf32>
  %2 = nn.linear %0, %w {in_out} : (tensor<4x5xf32>, tensor<5x8xf32>) -> tensor<4x8xf32>
  return %2, %1 : tensor<4x8xf32>, tensor<4x1xf32>
}

// Parts that tensor parallelism cuts stay together: two of 5 rows, or four heads of 2 rows, of which each rank uses two.

// CHECK-LABEL: func.func @parts
// CHECK-SAME: [[A:%[a-z0-9]+]]: tensor<10x8xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"tp"}, 5 pad 6{"gtp"}), {}]>, nn.parameter = "a"}
// CHECK-SAME: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp", "gtp"}, {}]>, nn.parameter = "heads"}
// CHECK-SAME: tensor<6x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"gtp"}, {"tp"}]>, nn.parameter = "rows"}
// CHECK-DAG: dist.fetch [[A]] rows 5 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<10x8xf32>
// CHECK-DAG: dist.fetch {{.*}} rows 4 {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>} : tensor<8x8xf32>
// CHECK-DAG: dist.fetch {{.*}} {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>} : tensor<6x8xf32>
func.func @parts(%x: tensor<4x8xf32> {nn.input = "x"},
                 %a: tensor<10x8xf32> {nn.parameter = "a", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %h: tensor<8x8xf32> {nn.parameter = "heads", dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>},
                 %r: tensor<6x8xf32> {nn.parameter = "rows", dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>}) -> (tensor<4x10xf32>, tensor<4x4x2xf32>, tensor<4x6xf32>) {
  %0 = nn.linear %x, %a : (tensor<4x8xf32>, tensor<10x8xf32>) -> tensor<4x10xf32>
  %1 = nn.linear %x, %h : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
  %2 = nn.reshape %1 : (tensor<4x8xf32>) -> tensor<4x4x2xf32>
  %3 = nn.linear %x, %r : (tensor<4x8xf32>, tensor<6x8xf32>) -> tensor<4x6xf32>
  return %0, %2, %3 : tensor<4x10xf32>, tensor<4x4x2xf32>, tensor<4x6xf32>
}

// An update reads the weight as it is stored.

// CHECK-LABEL: func.func @step
// CHECK: [[F:%.+]] = dist.fetch [[P:%.+]] : tensor<4x8xf32>
// CHECK: nn.linear {{.*}}, [[F]]
// CHECK: nn.sub [[P]],
nn.state @p {role = "parameter"} : tensor<4x8xf32>
func.func @step(%x: tensor<4x8xf32> {nn.input = "x"}, %p: tensor<4x8xf32> {nn.parameter = "p", nn.state = "p"})
    -> (tensor<f32> {nn.output = "loss"}, tensor<4x8xf32> {nn.state = "p"}) {
  %0 = nn.linear %x, %p : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x4xf32>
  %1 = nn.reduce sum %0 dims [0, 1] : (tensor<4x4xf32>) -> tensor<f32>
  %2 = nn.gradient %1 of "p" : (tensor<f32>) -> tensor<4x8xf32>
  %3 = nn.sub %p, %2 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %1, %3 : tensor<f32>, tensor<4x8xf32>
}
