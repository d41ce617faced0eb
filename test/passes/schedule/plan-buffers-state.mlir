// RUN: sharding-opt %s --form-kernels --order-updates --plan-buffers | FileCheck %s

nn.state @s : tensor<16xf32>
nn.state @t : tensor<16xf32>
nn.state @c : tensor<8x4xf32>

// The new value takes the place of the old one, and none in the arena.

// CHECK-LABEL: func.func @update
// CHECK-SAME: rt.arena = 0
// CHECK: rt.kernel %{{.+}}, %{{.+}} at [0] over ["s"] :
func.func @update(%s: tensor<16xf32> {nn.state = "s"}, %x: tensor<16xf32> {nn.input = "x"}) -> (tensor<16xf32> {nn.state = "s"}) {
  %0 = nn.add %s, %x : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  return %0 : tensor<16xf32>
}

// Two updates of rows, each with its place in the log: 64 bytes of indices, then the rows.

// CHECK-LABEL: func.func @rows
// CHECK-SAME: rt.arena = 0
// CHECK: rt.kernel %{{.+}}, %{{.+}}, %{{.+}} at [0] over ["c"] :
// CHECK: rt.kernel %{{.+}}, %{{.+}}, %{{.+}} at [128] over ["c"] :
func.func @rows(%c: tensor<8x4xf32> {nn.state = "c"}, %i: tensor<2xi64> {nn.input = "i"}, %x: tensor<2x4xf32> {nn.input = "x"}) -> (tensor<8x4xf32> {nn.state = "c"}) {
  %0 = nn.index_copy %c, %i, %x dim 0 : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
  %1 = nn.index_copy %0, %i, %x dim 0 : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
  return %1 : tensor<8x4xf32>
}

// A reader of the old rows comes first.

// CHECK-LABEL: func.func @read_first
// CHECK: nn.softmax
// CHECK: over ["c"]
// CHECK: nn.index_copy
func.func @read_first(%c: tensor<8x4xf32> {nn.state = "c"}, %i: tensor<2xi64> {nn.input = "i"}, %x: tensor<2x4xf32> {nn.input = "x"})
    -> (tensor<8x4xf32> {nn.output = "y"}, tensor<8x4xf32> {nn.state = "c"}) {
  %0 = nn.index_copy %c, %i, %x dim 0 : (tensor<8x4xf32>, tensor<2xi64>, tensor<2x4xf32>) -> tensor<8x4xf32>
  %1 = nn.softmax %c dim 1 : tensor<8x4xf32>
  return %1, %0 : tensor<8x4xf32>, tensor<8x4xf32>
}

// An optimizer's states, which one loop computes together, are all in their places.

// CHECK-LABEL: func.func @moments
// CHECK-SAME: rt.arena = 0
// CHECK: rt.kernel {{.+}} at [0, 0] over ["s", "t"] :
func.func @moments(%s: tensor<16xf32> {nn.state = "s"}, %t: tensor<16xf32> {nn.state = "t"}, %x: tensor<16xf32> {nn.input = "x"})
    -> (tensor<16xf32> {nn.state = "s"}, tensor<16xf32> {nn.state = "t"}) {
  %0 = nn.add %s, %x : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  %1 = nn.sub %t, %0 : (tensor<16xf32>, tensor<16xf32>) -> tensor<16xf32>
  return %0, %1 : tensor<16xf32>, tensor<16xf32>
}

// The output is the old value, so it stays.

// CHECK-LABEL: func.func @old_value
// CHECK-NOT: over
// CHECK: return
func.func @old_value(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.output = "y"}, tensor<16xf32> {nn.state = "s"}) {
  %0 = nn.neg %s : tensor<16xf32>
  return %s, %0 : tensor<16xf32>, tensor<16xf32>
}

// Two states that exchange their values are copied.

// CHECK-LABEL: func.func @exchange
// CHECK-NOT: over
// CHECK: return
func.func @exchange(%s: tensor<16xf32> {nn.state = "s"}, %t: tensor<16xf32> {nn.state = "t"}) -> (tensor<16xf32> {nn.state = "s"}, tensor<16xf32> {nn.state = "t"}) {
  return %t, %s : tensor<16xf32>, tensor<16xf32>
}

// Each element of a softmax reads all others.

// CHECK-LABEL: func.func @other_places
// CHECK-NOT: over
// CHECK: return
func.func @other_places(%s: tensor<16xf32> {nn.state = "s"}) -> (tensor<16xf32> {nn.state = "s"}) {
  %0 = nn.softmax %s dim 0 : tensor<16xf32>
  return %0 : tensor<16xf32>
}
