// RUN: sharding-opt %s --split-input-file --bind-state --verify-roundtrip | FileCheck %s
// RUN: sharding-opt %s --split-input-file --bind-state --bind-state | FileCheck %s
// RUN: sharding-opt %s --split-input-file --bind-state --release-parameters | FileCheck %s --check-prefix=RELEASED

// The example of the pass. A read stands after the write and yields the old value.

// CHECK-LABEL: func.func @main
// CHECK-SAME: (%{{.+}}: tensor<4xf32> {nn.input = "x"}, [[N:%.+]]: tensor<i64> {nn.state = "steps"})
// CHECK-SAME: -> (tensor<i64> {nn.output = "n"}, tensor<i64> {nn.state = "steps"})
// CHECK: [[NEXT:%.+]] = nn.add [[N]]
// CHECK-NEXT: return [[N]], [[NEXT]]
nn.state @steps {fill = 0 : i64} : tensor<i64>
func.func @main(%x: tensor<4xf32> {nn.input = "x"}) -> (tensor<i64> {nn.output = "n"}) {
  %0 = nn.read @steps : tensor<i64>
  %one = nn.constant dense<1> : tensor<i64>
  %1 = nn.add %0, %one : (tensor<i64>, tensor<i64>) -> tensor<i64>
  nn.write @steps, %1 : tensor<i64>
  %2 = nn.read @steps : tensor<i64>
  return %2 : tensor<i64>
}

// -----

// Two states change places. They come in the order of the module. Both carry their layouts.

// CHECK-LABEL: func.func @swap
// CHECK-SAME: ([[A:%.+]]: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "a b"}, [[B:%.+]]: tensor<4xf32> {nn.state = "b"})
// CHECK-SAME: -> (tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, nn.state = "a b"}, tensor<4xf32> {nn.state = "b"})
// CHECK-NEXT: return [[B]], [[A]]
dist.mesh @mesh = <["tp"=2]>
nn.state @"a b" {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
nn.state @untouched : tensor<4xf32>
nn.state @b : tensor<4xf32>
func.func @swap() {
  %b = nn.read @b : tensor<4xf32>
  %a = nn.read @"a b" : tensor<4xf32>
  nn.write @b, %a : tensor<4xf32>
  nn.write @"a b", %b : tensor<4xf32>
  return
}

// Another entry writes a state that it does not read.

// CHECK-LABEL: func.func @reset() -> (tensor<4xf32> {nn.state = "b"})
func.func @reset() {
  %0 = nn.constant dense<0.0> : tensor<4xf32>
  nn.write @b, %0 : tensor<4xf32>
  return
}

// -----

// A read with a sharding becomes a constraint.

// CHECK-LABEL: func.func @constrained
// CHECK-SAME: [[S:%.+]]: tensor<4xf32> {nn.state = "s"}
// CHECK: [[C:%.+]] = dist.constrain [[S]] <@mesh, [{"tp"}]>
// CHECK: return [[C]]
dist.mesh @mesh = <["tp"=2]>
nn.state @s : tensor<4xf32>
func.func @constrained() -> tensor<4xf32> {
  %0 = nn.read @s {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>} : tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// A trained parameter is the state's argument, in an entry that only reads it, too.

nn.state @w : tensor<4xf32>
// CHECK-LABEL: func.func @train
// CHECK-SAME: %[[W:.*]]: tensor<4xf32> {nn.aliases = ["v"], nn.parameter = "w", nn.state = "w"}) -> (tensor<4xf32> {nn.state = "w"})
// CHECK: return %[[W]]
// RELEASED-LABEL: func.func @train
// RELEASED-SAME: %[[W:.*]]: tensor<4xf32> {nn.state = "w"}) -> (tensor<4xf32> {nn.state = "w"})
func.func @train(%w: tensor<4xf32> {nn.parameter = "w", nn.aliases = ["v"]}) {
  nn.write @w, %w : tensor<4xf32>
  return
}
// CHECK-LABEL: func.func @use
// CHECK-SAME: nn.parameter = "w", nn.state = "w"
func.func @use(%w: tensor<4xf32> {nn.parameter = "w"}) { return }
