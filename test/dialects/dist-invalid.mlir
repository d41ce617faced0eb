// RUN: sharding-opt %s -split-input-file -verify-diagnostics -o %t

// Meshes.

// expected-error@+1 {{mesh axis without a name}}
dist.mesh @mesh = <[""=2]>

// -----

// expected-error@+1 {{mesh axis "tp" occurs twice}}
dist.mesh @mesh = <["tp"=2, "tp"=2]>

// -----

// expected-error@+1 {{mesh axis "tp": expected a size of at least 1, got 0}}
dist.mesh @mesh = <["tp"=0]>

// -----

// expected-error@+1 {{mesh axis "tp" has a negative bandwidth or latency}}
dist.mesh @mesh = <["tp"=2 {bandwidth = -1.0}]>

// -----

// expected-error@+1 {{mesh has more than 2^31 ranks}}
dist.mesh @mesh = <["dp"=65536, "tp"=65536]>

// -----

// expected-error@+1 {{expected 'bandwidth' or 'latency' of the link, 'roles' or 'order'}}
dist.mesh @mesh = <["tp"=2 {speed = 1.0}]>

// -----

// Roles of axes.

// expected-error@+1 {{mesh axis "tp": expected the role data, tensor, ring, ulysses, gtp or expert, got 'model'}}
dist.mesh @mesh = <["tp"=2 {roles = [tensor, model]}]>

// -----

// expected-error@+1 {{mesh axis "tp": expected the role tensor once, got it twice}}
dist.mesh @mesh = <["tp"=2 {roles = [tensor, data, tensor]}]>

// -----

// expected-error@+1 {{mesh axis "tp": expected a list of roles as on axis "dp", got none}}
dist.mesh @mesh = <["dp"=2 {roles = [data]}, "tp"=2]>

// -----

// expected-error@+1 {{mesh axis "tp": expected a list of roles as on axis "dp", got none}}
dist.mesh @mesh = <["tp"=2, "dp"=2 {roles = []}]>

// -----

// expected-error@+1 {{mesh axes "a" and "b": expected one axis with the role ring}}
dist.mesh @mesh = <["a"=2 {roles = [ring]}, "b"=2 {roles = [data, ring]}]>

// -----

// expected-error@+1 {{mesh axis "sp": expected the order contiguous, zigzag or striped, got 'auto'}}
dist.mesh @mesh = <["sp"=2 {roles = [ring], order = auto}]>

// -----

// expected-error@+1 {{mesh axis "sp" with the order striped: expected the role ring, got [ulysses]}}
dist.mesh @mesh = <["sp"=2 {roles = [ulysses], order = striped}]>

// -----

// Shardings, as they are written.

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{part of axis "tp": expected positive sizes}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(0)2}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{expected '?' to come last}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{?, "tp"}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{factor: expected a size of at least 1, got 0}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [(0, 8), {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{factor: expected a padded size of at least 4, got 3}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [(4 pad 3, 2), {}]>}) { return }

// -----

// Shardings, on values of a global program.

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': expected a #dist.sharding, got 1 : i64}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = 1}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': no mesh named @other}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@other, [{}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': expected a tensor of static shape, got 'f32'}}
func.func @f(%x: f32 {dist.sharding = #dist.sharding<@mesh, []>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': expected a tensor of static shape, got 'tensor<?x8xf32>'}}
func.func @f(%x: tensor<?x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': expected 2 dimensions, got 1}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': unknown mesh axis "cp"}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"cp"}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': part (1)3 does not divide axis "tp" of size 4}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(1)3}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': part (4611686018427387904)4 does not divide axis "tp" of size 4}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp":(4611686018427387904)4}, {}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': axis "tp" is used twice in a sharding}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {"tp":(2)2}]>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.sharding': axis "tp" is used twice in a sharding}}
func.func @f(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}], unreduced = {"tp"}>}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{'func.func' op result 1: 'dist.sharding': expected 2 dimensions, got 1}}
func.func @f(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>}) {
  return %x, %x : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{'dist.sharding': expected a list of 1 shardings, got 2}}
  %0 = nn.neg %x {dist.sharding = [#dist.sharding<@mesh, [{}, {}]>, #dist.sharding<@mesh, [{}, {}]>]} : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{'dist.sharding': expected a #dist.sharding, got unit}}
  %0 = nn.neg %x {dist.sharding = [unit]} : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f() {
  // expected-error@+1 {{'dist.sharding': expected a list of 0 shardings}}
  return {dist.sharding = #dist.sharding<@mesh, []>}
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{unknown attribute 'dist.shard'}}
  %0 = nn.neg %x {dist.shard} : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{expected a sharding of 2 dimensions, got 1}}
  %0 = dist.constrain %x <@mesh, [{}]> : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{no mesh named @other}}
  %0 = dist.constrain %x <@other, [{}, {}]> : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{unknown mesh axis "cp"}}
  %0 = dist.constrain %x <@mesh, [{"cp"}, {}]> : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{unknown attribute 'dist.shard'}}
func.func @f(%x: tensor<8xf32> {dist.shard}) { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{'dist.global' on a function without 'dist.spmd'}}
func.func @f(%x: tensor<8xf32> {dist.global = tensor<8xf32>}) { return }

// -----

// Signatures of SPMD functions.

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{'dist.spmd': expected a mesh's symbol on a function}}
func.func @f() attributes {dist.spmd = "mesh"} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{'dist.spmd': no mesh named @other}}
func.func @f() attributes {dist.spmd = @other} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0 of an SPMD function has no 'dist.sharding'}}
func.func @f(%x: tensor<2xf32> {dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0 of an SPMD function has no 'dist.global'}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{result 0 of an SPMD function has no 'dist.sharding'}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xf32>}) -> tensor<2xf32> attributes {dist.spmd = @mesh} { return %x : tensor<2xf32> }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.global': expected a tensor type of static shape}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = 8}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: 'dist.global': expected a tensor type of static shape}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<?xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: expected a static tensor of 'f32', got 'tensor<2xf16>'}}
func.func @f(%x: tensor<2xf16> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: expected a sharding on @mesh}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@other, [{}]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: expected a sharding of 1 dimensions, got 2}}
func.func @f(%x: tensor<2xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: expected a local type of rank 1, got rank 2}}
func.func @f(%x: tensor<2x1xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: dimension 0: expected a local size for at least 8 elements on 4 shards, got 1}}
func.func @f(%x: tensor<1xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: dimension 0: a factor of size 3 padded to 3 does not divide over 2 shards}}
func.func @f(%x: tensor<12xf32> {dist.sharding = #dist.sharding<@mesh, [(2, 3 pad 3{"dp"}, 4)]>, dist.global = tensor<24xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: dimension 0: expected factors that multiply to its size 24, got 8}}
func.func @f(%x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"dp"}, 4)]>, dist.global = tensor<24xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
// expected-error@+1 {{argument 0: dimension 0: expected local sizes of factors that multiply to 3, got 4}}
func.func @f(%x: tensor<3xf32> {dist.sharding = #dist.sharding<@mesh, [(2{"dp"}, 4)]>, dist.global = tensor<8xf32>}) attributes {dist.spmd = @mesh} { return }

// -----

// Collectives.

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{expected to be in a function with 'dist.spmd'}}
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected to be in a global program, got a function with 'dist.spmd'}}
  %0 = dist.constrain %x <@mesh, [{}, {}]> : tensor<4x8xf32>
  return
}

// -----

// Parts combine in other ways, too, but not by a collective.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{attribute 'reduction' failed to satisfy constraint: how partial values combine in a collective: sum or max}}
  %0 = dist.all_reduce merge %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{attribute 'reduction' failed to satisfy constraint: how partial values combine in a collective: sum or max}}
  %0 = dist.reduce_scatter place %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<1x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{unknown mesh axis "cp"}}
  %0 = dist.all_reduce sum %x axes ["cp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{part of axis "tp": expected positive sizes}}
  %0 = dist.all_reduce sum %x axes ["tp":(1)0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{part (2)4 does not divide axis "tp" of size 4}}
  %0 = dist.all_reduce sum %x axes ["tp":(2)4] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{axis "tp" occurs twice}}
  %0 = dist.all_reduce sum %x axes ["tp", "tp":(1)2] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected at least one operand}}
  dist.all_reduce sum axes ["tp"] : () -> ()
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected as many operands as results, got 1 operands and 2 results}}
  %0:2 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>)
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected tensors of static shape, got}}
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<?x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{operand 'tensor<4x8xf32>' and result 'tensor<4x8xf16>' differ in rank or element type}}
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf16>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0: expected 'tensor<4x8xf32>', got 'tensor<4x9xf32>'}}
  %0 = dist.all_reduce sum %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x9xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0: expected 'tensor<4x8xf32>', got 'tensor<4x9xf32>'}}
  %0 = dist.partial %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x9xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dims': expected one dimension for each of the 1 operands, got 2}}
  %0 = dist.all_gather %x axes ["tp"] dims [0, 1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 2 is out of range for 'tensor<4x8xf32>'}}
  %0 = dist.all_gather %x axes ["tp"] dims [2] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0: expected 'tensor<16x8xf32>', got 'tensor<4x8xf32>'}}
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{operand 0, dimension 0: expected a multiple of the 8 ranks of the group, got size 4}}
  %0 = dist.reduce_scatter sum %x axes ["dp", "tp"] dims [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0: expected 'tensor<1x8xf32>', got 'tensor<4x8xf32>'}}
  %0 = dist.reduce_scatter sum %x axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'from': expected one dimension for each of the 1 operands, got 0}}
  %0 = dist.all_to_all %x axes ["tp"] from [] to [1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension -1 is out of range for 'tensor<4x8xf32>'}}
  %0 = dist.all_to_all %x axes ["tp"] from [0] to [-1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{moves dimension 1 to itself}}
  %0 = dist.all_to_all %x axes ["tp"] from [1] to [1] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{operand 0, dimension 0: expected a multiple of the 8 ranks of the group, got size 4}}
  %0 = dist.all_to_all %x axes ["dp", "tp"] from [1] to [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0: expected 'tensor<1x32xf32>', got 'tensor<4x8xf32>'}}
  %0 = dist.all_to_all %x axes ["tp"] from [1] to [0] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{result 0, dimension 1: expected at least size 2 for the operand's 8 rows over 4 ranks, got 1}}
  %0 = dist.slice %x axes ["tp"] dims [1] : (tensor<4x8xf32>) -> tensor<4x1xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected either 'shift' or 'pairs'}}
  %0 = dist.permute %x axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected either 'shift' or 'pairs'}}
  %0 = dist.permute %x axes ["dp"] shift 1 pairs [[0, 1], [1, 0]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'pairs': expected an even number of ranks}}
  %0 = "dist.permute"(%x) {axes = [#dist.axis_ref<"dp">], pairs = array<i64: 0>} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'pairs': expected ranks of a group of 2, got 2}}
  %0 = dist.permute %x axes ["dp"] pairs [[0, 2], [1, 0]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'pairs' sends to rank 0 twice}}
  %0 = dist.permute %x axes ["dp"] pairs [[0, 0], [1, 0]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'pairs' names no ranks}}
  %0 = dist.permute %x axes ["dp"] pairs [] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected one sharding in 'from' and in 'to' for each of the 1 operands}}
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}, {}]>, #dist.sharding<@mesh, [{}, {}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'to': no mesh named @other}}
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}, {}]>] to [#dist.sharding<@other, [{}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'from': expected 2 dimensions, got 1}}
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}]>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'from': unreduced axes cannot be redistributed}}
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>] to [#dist.sharding<@mesh, [{}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'to': unknown mesh axis "cp"}}
  %0 = dist.redistribute %x from [#dist.sharding<@mesh, [{}, {}]>] to [#dist.sharding<@mesh, [{"cp"}, {}]>] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected static tensors of one rank and element type}}
  %0 = dist.pad %x dims [0] : (tensor<4x8xf32>) -> tensor<4x8xf16>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 2 is out of range for 'tensor<4x8xf32>'}}
  %0 = dist.pad %x dims [2] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 0: expected at least the operand's size 4, got 3}}
  %0 = dist.pad %x dims [0] : (tensor<4x8xf32>) -> tensor<3x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 1: expected the operand's size 8, got 9}}
  %0 = dist.pad %x dims [0] : (tensor<4x8xf32>) -> tensor<4x9xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 2 is out of range for 'tensor<4x8xf32>'}}
  %0 = dist.mask_padding %x axes ["tp"] dim 2 size 1 value 0.0 : tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 0: expected a true size of at most 4 chunks of 4, got 17}}
  %0 = dist.mask_padding %x axes ["tp"] dim 0 size 17 value 0.0 : tensor<4x8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{unknown mesh axis "cp"}}
  %0 = dist.place %x axes ["cp"] dim 1 shifts [0] : (tensor<4x8xf32>) -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected one shift for each of at least one chunk, got 1 shifts for 2 chunks}}
  %0 = dist.place %x, %x axes ["tp"] dim 1 shifts [0] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected one shift for each of at least one chunk, got 0 shifts for 0 chunks}}
  %0 = dist.place axes ["tp"] dim 1 shifts [] : () -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{places two chunks with shift 3 of 4}}
  %0 = dist.place %x, %x axes ["tp"] dim 1 shifts [3, -1] : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  %y = dist.pad %x dims [1] : (tensor<4x8xf32>) -> tensor<4x9xf32>
  // expected-error@+1 {{expected chunks of one type, got 'tensor<4x8xf32>' and 'tensor<4x9xf32>'}}
  %0 = dist.place %x, %y axes ["tp"] dim 1 shifts [0, 1] : (tensor<4x8xf32>, tensor<4x9xf32>) -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{dimension 2 is out of range for 'tensor<4x8xf32>'}}
  %0 = dist.place %x axes ["tp"] dim 2 shifts [0] : (tensor<4x8xf32>) -> tensor<4x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  %y = tensor.cast %x : tensor<4x8xf32> to tensor<?x8xf32>
  // expected-error@+1 {{expected chunks of static shape, got 'tensor<?x8xf32>'}}
  %0 = dist.place %y axes ["tp"] dim 1 shifts [0] : (tensor<?x8xf32>) -> tensor<?x32xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected result of type 'tensor<4x32xf32>', got 'tensor<4x16xf32>'}}
  %0 = dist.place %x axes ["tp"] dim 1 shifts [0] : (tensor<4x8xf32>) -> tensor<4x16xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @f(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected result of type tensor<i64>, got 'tensor<i32>'}}
  %0 = dist.axis_index ["tp"] : tensor<i32>
  return
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @f(%x: tensor<4611686018427387904xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4611686018427387904xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected a result of less than 2^63 rows, got more}}
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<4611686018427387904xf32>) -> tensor<0xf32>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @main() attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'factor': axis "tp" occurs twice}}
  %0 = dist.positions <16{"tp", "tp"}> : tensor<4xi64>
  return
}

// -----

// expected-error@+1 {{'dist.stages': expected a table of meshes on a dist.mesh}}
func.func @main() attributes {dist.stages = {}} { return }

// -----

// expected-error@+1 {{'dist.stages': stage 'draft': expected a mesh of 2 ranks, got #dist.mesh<["dp"=3]>}}
dist.mesh @mesh = <["tp"=2]> {dist.stages = {draft = #dist.mesh<["dp"=3]>}}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32>) {
  // expected-error@below {{'dist.operands' on an op of no SPMD function}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [(8), (8)]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': expected a list of 1 shardings, got unit}}
  %s = nn.reduce sum %x dims [0] {dist.operands = unit} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': expected a list of 1 shardings, got []}}
  %s = nn.reduce sum %x dims [0] {dist.operands = []} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected a sharding, got 1 : i64}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [1 : i64]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected a sharding on @mesh}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@other, [(8), (8)]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected a size of each factor, as in (8{"dp"})}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [{"dp"}, (8)]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: a factor of size 7 padded to 7 does not divide over 2 shards}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [(7 pad 7{"dp"}), (8)]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected a sharding of 'tensor<4x8xf32>'}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [(4{"dp"}), (8)]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected no unreduced axes}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [(4), (8)], unreduced = {"dp"}>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @operands(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{'dist.operands': operand 0: expected no axes of an open dimension}}
  %s = nn.reduce sum %x dims [0] {dist.operands = [#dist.sharding<@mesh, [{"dp", ?}, {?}]>]} : (tensor<4x8xf32>) -> tensor<8xf32>
  return
}

// -----

dist.mesh @mesh = <["dp"=2]>
func.func @role(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@below {{to be one of: data, weights, gradients, saved}}
  // expected-error@below {{failed to parse Dist_CollectiveRoleAttr parameter}}
  %0 = dist.all_gather %x axes ["dp"] dims [0] role weight : (tensor<4x8xf32>) -> tensor<8x8xf32>
  return
}

// -----

// Weights in storage.

dist.mesh @mesh = <["tp"=2]>
func.func @rows(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{'dist.fetch' op expected rows to divide the 8 of dimension 0, got 3}}
  %0 = dist.fetch %x rows 3 : tensor<8x8xf32>
  return
}

// -----

func.func @align(%x: tensor<8x8xf32>) {
  // expected-error@+1 {{'dist.stow' op expected align to be at least 1, got 0}}
  %0 = dist.stow %x align 0 : tensor<8x8xf32>
  return
}

// -----

func.func @scalar(%x: tensor<f32>) {
  // expected-error@+1 {{'dist.fetch' op expected a tensor of static shape with a dimension, got 'tensor<f32>'}}
  %0 = dist.fetch %x : tensor<f32>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @local(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.fetch' op expected to be in a global program, got a function with 'dist.spmd'}}
  %0 = dist.fetch %x : tensor<8x8xf32>
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @phase(%x: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<8x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'dist.phase': expected "forward", "recompute" or "backward" on a collective, got "later"}}
  %0 = dist.all_gather %x axes ["tp"] dims [0] role weights {dist.phase = "later"} : (tensor<8x8xf32>) -> tensor<16x8xf32>
  return
}

// -----

// expected-error@below {{'dist.row_load': expected a number (f64) from 1 on, on a function, got 5.000000e-01 : f64}}
func.func @row_load() attributes {dist.row_load = 0.5 : f64} {
  return
}
