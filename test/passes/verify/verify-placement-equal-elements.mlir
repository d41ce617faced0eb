// RUN: sharding-opt %s --verify-placement --split-input-file | sharding-opt --split-input-file | FileCheck %s

// An operand, a mask, a slice or a statement shows of how many equal elements a rank has some.

// CHECK-LABEL: func.func @constant_beside_a_row_of_each_rank
dist.mesh @mesh = <["dp"=2]>
func.func @constant_beside_a_row_of_each_rank(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<2x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  %s = nn.reduce sum %p dims [0] : (tensor<1x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @constant_beside_a_whole_row
dist.mesh @mesh = <["dp"=2]>
func.func @constant_beside_a_whole_row(%x: tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<1x8xf32>
  %p = nn.mul %x, %c : (tensor<1x8xf32>, tensor<1x8xf32>) -> tensor<1x8xf32>
  %r = nn.reduce sum %p dims [0] : (tensor<1x8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @stated_rows
dist.mesh @mesh = <["dp"=2]>
func.func @stated_rows()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  %s = nn.reduce sum %c dims [0] {dist.operands = [#dist.sharding<@mesh, [(8{"dp"}), {?}]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @stated_maximum
dist.mesh @mesh = <["dp"=2]>
func.func @stated_maximum()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  %s = nn.reduce max %c dims [0] {dist.operands = [#dist.sharding<@mesh, [(8{"dp"}), {?}]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce max %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @stated_zeros
dist.mesh @mesh = <["dp"=2]>
func.func @stated_zeros()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<0.0> : tensor<4x8xf32>
  %s = nn.reduce sum %c dims [0] {dist.operands = [#dist.sharding<@mesh, [(7 pad 8{"dp"}), {?}]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @masked_rows
dist.mesh @mesh = <["dp"=2]>
func.func @masked_rows()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  %t = dist.positions <7 pad 8{"dp"}> : tensor<4xi64>
  %z = nn.constant dense<0> : tensor<i64>
  %f = nn.constant dense<0.0> : tensor<f32>
  %a = nn.compare ge %t, %z : (tensor<4xi64>, tensor<i64>) -> tensor<4xi1>
  %b = nn.reshape %a : (tensor<4xi1>) -> tensor<4x1xi1>
  %m = nn.select %b, %c, %f : (tensor<4x1xi1>, tensor<4x8xf32>, tensor<f32>) -> tensor<4x8xf32>
  %s = nn.reduce sum %m dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @sliced_rows
dist.mesh @mesh = <["dp"=2]>
func.func @sliced_rows()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = nn.constant dense<2.0> : tensor<8x8xf32>
  %c = dist.slice %k axes ["dp"] dims [0] : (tensor<8x8xf32>) -> tensor<4x8xf32>
  %s = nn.reduce sum %c dims [0] : (tensor<4x8xf32>) -> tensor<8xf32>
  %r = dist.all_reduce sum %s axes ["dp"] : (tensor<8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @gathered_rows
dist.mesh @mesh = <["dp"=2]>
func.func @gathered_rows()
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  %c = nn.constant dense<2.0> : tensor<4x8xf32>
  %g = dist.all_gather %c axes ["dp"] dims [0] {dist.operands = [#dist.sharding<@mesh, [(8{"dp"}), {?}]>]} : (tensor<4x8xf32>) -> tensor<8x8xf32>
  %r = nn.reduce sum %g dims [0] : (tensor<8x8xf32>) -> tensor<8xf32>
  return %r : tensor<8xf32>
}

// -----

// CHECK-LABEL: func.func @promised_rows
dist.mesh @mesh = <["dp"=2]>
func.func @promised_rows()
    -> (tensor<1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<2x8xf32>})
    attributes {dist.spmd = @mesh} {
  %r = nn.constant dense<2.0> : tensor<1x8xf32>
  return %r : tensor<1x8xf32>
}

// -----

// Equal elements have every order, so a reorder gives them the one that it states: that of %x.
dist.mesh @mesh = <["ring"=3]>
func.func @reordered(%x: tensor<4x5xf32> {nn.input = "x", dist.sharding = #dist.sharding<@mesh, [(12 striped 3{"ring"}), {}]>, dist.global = tensor<12x5xf32>},
                %g: tensor<1x2xf32> {nn.input = "g", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<1x2xf32>})
    -> (tensor<2x5xf32> {nn.output = "w", dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<2x5xf32>}) attributes {dist.spmd = @mesh} {
  %0 = nn.broadcast %g : (tensor<1x2xf32>) -> tensor<12x2xf32>
  %1 = dist.reorder %0 dim 0 from <12> to <12 striped 3> : tensor<12x2xf32>
  %2 = dist.slice %1 axes ["ring"] dims [0] : (tensor<12x2xf32>) -> tensor<4x2xf32>
  %3 = nn.weight_grad %2, %x : (tensor<4x2xf32>, tensor<4x5xf32>) -> tensor<2x5xf32>
  %4 = dist.all_reduce sum %3 axes ["ring"] : (tensor<2x5xf32>) -> tensor<2x5xf32>
  return %4 : tensor<2x5xf32>
}
