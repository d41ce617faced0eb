// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// A ring with a step too few.
dist.mesh @mesh = <["ring"=2]>
func.func @missing_step(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %o, %l = nn.attention %x, %x, %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{reads operand 0, attention over key chunks {0} of the needed {0, 1} of {"ring"}: the others have not been merged}}
  %r = nn.tanh %o : tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A chunk that is merged twice.
dist.mesh @mesh = <["ring"=2]>
func.func @chunk_merged_twice(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 2 is from here}}
  %o, %l = nn.attention %x, %x, %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges chunk 0 of the keys along {"ring"} twice}}
  %r, %s = nn.merge_attention %o, %l, %o, %l : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %r : tensor<1x2x4x8xf32>
}

// -----

// No log-sum-exp by which to merge.
dist.mesh @mesh = <["ring"=2]>
func.func @no_log_sum_exp(
    // expected-note@below {{operand 1 is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{sees a chunk of the keys, which are sharded over {"ring"}, and has no log-sum-exp by which to merge the others}}
  %o = nn.attention %x, %x, %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A causal mask that knows no positions.
dist.mesh @mesh = <["ring"=2]>
func.func @causal_mask_without_positions(
    %q: tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    // expected-note@below {{operand 1 is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{compares positions of keys that are sharded over {"ring"}: expected the positions as operands}}
  %o, %l = nn.attention %q, %x, %x scale 0.5 {causal} : (tensor<1x2x8x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x8x8xf32>, tensor<1x2x8xf32>)
  return %o : tensor<1x2x8x8xf32>
}

// -----

// Positions of another chunk than the keys'.
dist.mesh @mesh = <["ring"=2]>
func.func @positions_of_another_chunk(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %q = dist.positions <8 zigzag 2{"ring"}> : tensor<4xi64>
  // expected-note@below {{is from here, and has layout [(8 zigzag 2{"ring"} shifted by 1)]}}
  %k = dist.positions <8 zigzag 2{"ring"}> shift 1 : tensor<4xi64>
  // expected-error@below {{dimension 0 of operand 4: expected layout [(8 zigzag 2{"ring"})] of true size 8 as in operand 1, got [(8 zigzag 2{"ring"} shifted by 1)] of 8}}
  %o, %l = nn.attention %x, %x, %x positions %q, %k scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A loss over padding, which stands behind a sequence in zigzag order.
dist.mesh @mesh = <["ring"=2]>
func.func @loss_over_padding_in_zigzag(
    %x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [(7 pad 8 zigzag 2{"ring"})]>, dist.global = tensor<7xf32>})
    -> (tensor<f32> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<f32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = dist.all_gather %x axes ["ring"] dims [0] : (tensor<4xf32>) -> tensor<8xf32>
  // expected-error@below {{reads the padding behind the 7 true of 8 rows, which is zero, and would count it in the mean}}
  %1 = nn.reduce mean %0 dims [0] : (tensor<8xf32>) -> tensor<f32>
  return %1 : tensor<f32>
}

// -----

// A cumulative sum counts tokens as they are numbered.
dist.mesh @mesh = <["ring"=2]>
func.func @cumulative_sum_in_zigzag(
    %x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [(8 zigzag 2{"ring"})]>, dist.global = tensor<8xf32>})
    -> (tensor<8xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %0 = dist.all_gather %x axes ["ring"] dims [0] : (tensor<4xf32>) -> tensor<8xf32>
  // expected-error@below {{counts elements of a dimension of operand 0, which are not in contiguous order}}
  %1 = nn.cumsum %0 dim 0 : tensor<8xf32>
  return %1 : tensor<8xf32>
}

// -----

// Blocks of a mask are for attention in that step of the ring: others would need all of them.
dist.mesh @mesh = <["ring"=2]>
func.func @mask_block_outside_its_step(%s: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<4xi1> {dist.sharding = #dist.sharding<@mesh, [{"ring"}]>, dist.global = tensor<8xi1>})
    attributes {dist.spmd = @mesh} {
  %own = dist.slice %s axes ["ring"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %rows = nn.reshape %own : (tensor<4xi64>) -> tensor<4x1xi64>
  // expected-note@below {{is from here, and has layout}}
  %same = nn.compare eq %rows, %own : (tensor<4x1xi64>, tensor<4xi64>) -> tensor<4x4xi1>
  // expected-error@below {{reads operand 0, which has blockwise layout [{"ring"}, {"ring"}]: only the bias of attention and dist.place may}}
  %r = nn.slice %same starts [0, 0] limits [4, 1] strides [1, 1] : (tensor<4x4xi1>) -> tensor<4x1xi1>
  %f = nn.reshape %r : (tensor<4x1xi1>) -> tensor<4xi1>
  return %f : tensor<4xi1>
}

// -----

// Blocks of two steps in one mask.
dist.mesh @mesh = <["ring"=2]>
func.func @mask_blocks_of_two_steps(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %s: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %own = dist.slice %s axes ["ring"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %next = dist.slice %s axes ["ring"] dims [0] shift 1 : (tensor<8xi64>) -> tensor<4xi64>
  %rows = nn.reshape %own : (tensor<4xi64>) -> tensor<4x1xi64>
  %a = nn.compare eq %rows, %own : (tensor<4x1xi64>, tensor<4xi64>) -> tensor<4x4xi1>
  // expected-note@below {{is from here, and has layout}}
  %b = nn.compare le %next, %rows : (tensor<4xi64>, tensor<4x1xi64>) -> tensor<4x4xi1>
  // expected-error@below {{dimension 1 of operand 1: expected layout [{"ring"}] of true size 8 as in operand 0, got [(8{"ring"} shifted by 1)] of 8}}
  %seen = nn.and %a, %b : (tensor<4x4xi1>, tensor<4x4xi1>) -> tensor<4x4xi1>
  %bias = nn.cast %seen : (tensor<4x4xi1>) -> tensor<4x4xf32>
  %o, %l = nn.attention %q, %q, %q bias %bias scale 1.0 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A mask of the rank's own keys for those of the rank before it.
dist.mesh @mesh = <["ring"=2]>
func.func @mask_of_own_keys_for_others(
    %q: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %s: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %own = dist.slice %s axes ["ring"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %rows = nn.reshape %own : (tensor<4xi64>) -> tensor<4x1xi64>
  %a = nn.compare eq %rows, %own : (tensor<4x1xi64>, tensor<4xi64>) -> tensor<4x4xi1>
  // expected-note@below {{is from here, and has layout}}
  %bias = nn.cast %a : (tensor<4x4xi1>) -> tensor<4x4xf32>
  %k = dist.permute %q axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{dimension 1 of operand 3: expected layout [(8{"ring"} shifted by 1)] of true size 8 as in operand 1, got [{"ring"}] of 8}}
  %o, %l = nn.attention %q, %k, %k bias %bias scale 1.0 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A block is not a result either.
dist.mesh @mesh = <["ring"=2]>
func.func @mask_block_as_result(%s: tensor<8xi64> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<8xi64>})
    -> (tensor<4x4xi1> {dist.sharding = #dist.sharding<@mesh, [{"ring"}, {}]>, dist.global = tensor<8x4xi1>})
    attributes {dist.spmd = @mesh} {
  %own = dist.slice %s axes ["ring"] dims [0] : (tensor<8xi64>) -> tensor<4xi64>
  %rows = nn.reshape %own : (tensor<4xi64>) -> tensor<4x1xi64>
  // expected-note@below {{is from here, and has layout}}
  %same = nn.compare eq %rows, %own : (tensor<4x1xi64>, tensor<4xi64>) -> tensor<4x4xi1>
  // expected-error@below {{result 0: expected layout [{"ring"}, {}], which the signature promises, got [{"ring"}, {"ring"}]}}
  return %same : tensor<4x4xi1>
}

// -----

// A permute that leaves out a rank that needs the chunk.
dist.mesh @mesh = <["ring"=4]>
func.func @permute_leaves_out_a_rank(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p0 = dist.positions <16{"ring"}> : tensor<4xi64>
  %p1 = dist.positions <16{"ring"}> shift 1 : tensor<4xi64>
  // expected-note@below {{operand 1 is from here, and has layout [{}, {}, (16{"ring"} shifted by 1), {}] missing on ranks {0, 2} of {"ring"}}}
  %k = dist.permute %x axes ["ring"] pairs [[0, 1], [2, 3]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{reads operand 1 on ranks {2} of {"ring"}, which a permute left out: the mask needs them there}}
  %o, %l = nn.attention %x, %k, %k positions %p0, %p1 scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A chunk that is missing stays so on its way.
dist.mesh @mesh = <["ring"=4]>
func.func @missing_chunk_moves_on(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p0 = dist.positions <16{"ring"}> : tensor<4xi64>
  %p2 = dist.positions <16{"ring"}> shift 2 : tensor<4xi64>
  %k1 = dist.permute %x axes ["ring"] pairs [[0, 1], [2, 3]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 1 is from here, and has layout [{}, {}, (16{"ring"} shifted by 2), {}] missing on ranks {1, 3} of {"ring"}}}
  %k2 = dist.permute %k1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{reads operand 1 on ranks {3} of {"ring"}, which a permute left out: the mask needs them there}}
  %o, %l = nn.attention %x, %k2, %k2 positions %p0, %p2 scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// Values that are missing where the keys are not.
dist.mesh @mesh = <["ring"=2]>
func.func @missing_values_of_present_keys(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p0 = dist.positions <8{"ring"}> : tensor<4xi64>
  %p1 = dist.positions <8{"ring"}> shift 1 : tensor<4xi64>
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 2 is from here}}
  %v = dist.permute %x axes ["ring"] pairs [[1, 0]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{reads operand 2 on ranks {1} of {"ring"}, which a permute left out: the mask needs them there}}
  %o, %l = nn.attention %x, %k, %v positions %p0, %p1 scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A mask that sees everything.
dist.mesh @mesh = <["ring"=2]>
func.func @full_mask(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 1 is from here}}
  %k = dist.permute %x axes ["ring"] pairs [[0, 1]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{reads operand 1 on ranks {0} of {"ring"}, which a permute left out: expected the keys' positions as an operand, to hide them}}
  %o, %l = nn.attention %x, %k, %k scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %o : tensor<1x2x4x8xf32>
}

// -----

// A missing chunk that something else reads.
dist.mesh @mesh = <["ring"=2]>
func.func @missing_chunk_read(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %k = dist.permute %x axes ["ring"] pairs [[0, 1]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{reads operand 0, which a permute left out on ranks {0} of {"ring"}: only keys and values of attention may be}}
  %r = nn.tanh %k : tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A missing chunk that is returned.
dist.mesh @mesh = <["ring"=2]>
func.func @missing_chunk_returned(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %k = dist.permute %x axes ["ring"] pairs [[0, 0]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{result 0: expected layout [{}, {}, {"ring"}, {}], which the signature promises, got [{}, {}, {"ring"}, {}] missing on ranks {1} of {"ring"}}}
  return %k : tensor<1x2x4x8xf32>
}

// -----

// Chunks that go differently far, and not all of them.
dist.mesh @mesh = <["ring"=4]>
func.func @chunks_shifted_differently(
    // expected-note@below {{operand 0 is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{leaves out ranks {1, 3} of {"ring"}: expected chunks of operand 0 that all go equally far along the axes that shard it, got layout [{}, {}, {"ring"}, {}]}}
  %k = dist.permute %x axes ["ring"] pairs [[2, 0], [3, 2]] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %k : tensor<1x2x4x8xf32>
}

// -----

// A value that all ranks have is no chunk that may be left out.
dist.mesh @mesh = <["ring"=2]>
func.func @replicated_chunk_left_out(
    // expected-note@below {{operand 0 is from here}}
    %x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{leaves out ranks {0} of {"ring"}: expected chunks of operand 0 that all go equally far along the axes that shard it, got layout [{}, {}]}}
  %k = dist.permute %x axes ["ring"] pairs [[0, 1]] : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %k : tensor<4x8xf32>
}

// -----

// Steps of one ring at different scales.
dist.mesh @mesh = <["ring"=2]>
func.func @scales_differ(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %o, %l = nn.attention %x, %x, %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 2 is from here}}
  %p, %m = nn.attention %x, %k, %k scale 0.25 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %r, %s = nn.merge_attention %o, %l, %p, %m : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A soft cap in one step only.
dist.mesh @mesh = <["ring"=2]>
func.func @soft_cap_in_one_step(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %o, %l = nn.attention %x, %x, %x scale 0.5 {soft_cap = 2.0 : f64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 2 is from here}}
  %p, %m = nn.attention %x, %k, %k scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %r, %s = nn.merge_attention %o, %l, %p, %m : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A mask of keys in one step only.
dist.mesh @mesh = <["ring"=2]>
func.func @key_mask_in_one_step(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %mask: tensor<1x4xi1> {dist.sharding = #dist.sharding<@mesh, [{}, {"ring"}]>, dist.global = tensor<1x8xi1>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %o, %l = nn.attention %x, %x, %x key_padding %mask scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x4xi1>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 2 is from here}}
  %p, %m = nn.attention %x, %k, %k scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %r, %s = nn.merge_attention %o, %l, %p, %m : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Queries elsewhere in the second step.
dist.mesh @mesh = <["ring"=2]>
func.func @queries_moved(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p0 = dist.positions <8{"ring"}> : tensor<4xi64>
  %p1 = dist.positions <8{"ring"}> shift 1 : tensor<4xi64>
  %off = nn.add %p0, %p0 : (tensor<4xi64>, tensor<4xi64>) -> tensor<4xi64>
  %o, %l = nn.attention %x, %x, %x positions %p0, %p0 scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 2 is from here}}
  %p, %m = nn.attention %x, %k, %k positions %off, %p1 scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{merges parts of different attentions}}
  %r, %s = nn.merge_attention %o, %l, %p, %m : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Queries that moved on need the chunks of the keys around where they are from.
dist.mesh @mesh = <["ring"=4]>
func.func @moved_queries_need_their_chunks(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x16x8xf32>})
    attributes {dist.spmd = @mesh} {
  %q = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %p0 = dist.positions <16{"ring"}> : tensor<4xi64>
  %p1 = dist.positions <16{"ring"}> shift 1 : tensor<4xi64>
  %o, %l = nn.attention %q, %x, %x positions %p1, %p0 scale 0.5 {causal, window_left = 2 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %p, %m = nn.attention %q, %k, %k positions %p1, %p1 scale 0.5 {causal, window_left = 2 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<4xi64>, tensor<4xi64>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-note@below {{operand 0 is from here}}
  %both, %s = nn.merge_attention %o, %l, %p, %m : (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4xf32>)
  // expected-error@below {{reads operand 0, attention over key chunks {0, 1} of the needed {1, 2} of {"ring"}}}
  %r = dist.permute %both axes ["ring"] shift 3 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A length counts keys by their places, not by their numbers.
dist.mesh @mesh = <["ring"=2]>
func.func @length_counts_keys_by_place(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, (8 zigzag 2{"ring"}), {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p = dist.positions <8 zigzag 2{"ring"}> : tensor<4xi64>
  %places = dist.positions <8 zigzag 2> : tensor<8xi64>
  // expected-note@below {{operand 1 is from here}}
  %k = dist.all_gather %x axes ["ring"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x8xf32>
  // expected-error@below {{counts elements of a dimension of operand 1, which are not in contiguous order}}
  %r = nn.attention %x, %k, %k positions %p, %places scale 0.5 {causal, kv_length = 5 : i64} : (tensor<1x2x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<4xi64>, tensor<8xi64>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Values that are no numbers in the padding, of which a hidden key makes zero times NaN.
dist.mesh @mesh = <["ring"=2]>
func.func @nan_in_value_padding(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x7x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x7x8xf32>})
    attributes {dist.spmd = @mesh} {
  %p = dist.positions <7 pad 8{"ring"}> : tensor<4xi64>
  %places = dist.positions <7 pad 8> : tensor<8xi64>
  %ones = nn.div %x, %x : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 1 is from here}}
  %k = dist.all_gather %x axes ["ring"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x8xf32>
  %v = dist.all_gather %ones axes ["ring"] dims [2] : (tensor<1x2x4x8xf32>) -> tensor<1x2x8x8xf32>
  // expected-error@below {{reads the padding behind the 7 true of 8 rows: expected finite values, got arbitrary}}
  %r = nn.attention %x, %k, %v positions %p, %places scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>, tensor<4xi64>, tensor<8xi64>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}
