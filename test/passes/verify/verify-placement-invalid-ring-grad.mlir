// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// The gradients of keys lack their last hop: each rank has those of the next one.
dist.mesh @mesh = <["ring"=2]>
func.func @no_last_hop(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %b:3 = nn.attention_grad %x, %k, %k lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %m = dist.permute %a#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %s = nn.add %m, %b#1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{which the signature promises, got [{}, {}, (8{"ring"} shifted by 1), {}]}}
  return %s : tensor<1x2x4x8xf32>
}

// -----

// Gradients of one step of two.
dist.mesh @mesh = <["ring"=2]>
func.func @missing_step(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-error@below {{reads operand 0, gradients of attention in steps {0} of the needed {0, 1} of {"ring"}: the others have not been added}}
  %r = nn.tanh %a#1 : tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A part is no result.
dist.mesh @mesh = <["ring"=2]>
func.func @returned_part(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 0 is from here}}
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-error@below {{which the signature promises, got [{}, {}, {"ring"}, {}] in steps {0} of {"ring"}}}
  return %a#0 : tensor<1x2x4x8xf32>
}

// -----

// A step that is added twice.
dist.mesh @mesh = <["ring"=2]>
func.func @step_added_twice(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-note@below {{operand 1 is from here}}
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-error@below {{adds step 0 of the ring along {"ring"} twice}}
  %r = nn.add %a#0, %a#0 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Gradients of keys and of values.
dist.mesh @mesh = <["ring"=2]>
func.func @keys_with_values(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-note@below {{operand 1 is from here}}
  %b:3 = nn.attention_grad %x, %k, %k lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  %m = dist.permute %a#1 axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-error@below {{adds parts of different attentions}}
  %r = nn.add %m, %b#2 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A part and a value that is none.
dist.mesh @mesh = <["ring"=2]>
func.func @part_and_whole(
    // expected-note@below {{operand 1 is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-error@below {{adds gradients in steps of a ring to operand 1, which is no such part}}
  %r = nn.add %a#0, %x : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// The gradients of a chunk that stayed where the chunk left.
dist.mesh @mesh = <["ring"=2]>
func.func @not_moved(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-note@below {{operand 1 is from here}}
  %b:3 = nn.attention_grad %x, %k, %k lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  // expected-error@below {{dimension 2 of operand 1: expected layout [{"ring"}] of true size 8 as in operand 0, got [(8{"ring"} shifted by 1)] of 8}}
  %r = nn.add %a#1, %b#1 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A causal mask that knows no positions.
dist.mesh @mesh = <["ring"=2]>
func.func @no_positions(
    // expected-note@below {{is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  // expected-error@below {{needs the whole of a dimension}}
  %a:3 = nn.attention_grad %x, %x, %x lse %l delta %l cotangent %x scale 0.5 {causal} : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>)
  return %a#0 : tensor<1x2x4x8xf32>
}

// -----

// Blocks of a bias, each at the place of the other.
dist.mesh @mesh = <["ring"=2]>
func.func @swapped(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  // expected-note@below {{operand 0 is from here}}
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{operand 0: expected chunks of dimension 3 along {"ring"} shifted by 1, got layout [{}, {}, {"ring"}, {"ring"}]}}
  %r = dist.place %p#3, %q#3 axes ["ring"] dim 3 shifts [1, 0] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A block that is left out.
dist.mesh @mesh = <["ring"=2]>
func.func @left_out(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{places steps {0} of the needed {0, 1} of the ring along {"ring"}: the others would be zeros}}
  %r = dist.place %p#3 axes ["ring"] dim 3 shifts [0] : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A block that is placed twice.
dist.mesh @mesh = <["ring"=2]>
func.func @placed_twice(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  // expected-note@below {{operand 1 is from here}}
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{operand 1: expected chunks of dimension 3 along {"ring"} shifted by 1, got layout}}
  %r = dist.place %p#3, %p#3 axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A step twice, at two places.
dist.mesh @mesh = <["ring"=2]>
func.func @step_twice(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x1x8xf32>})
    -> (tensor<1x2x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x1x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>)
  // expected-note@below {{operand 1 is from here}}
  %m = dist.permute %p#3 axes ["ring"] shift 1 : (tensor<1x2x1x4xf32>) -> tensor<1x2x1x4xf32>
  // expected-error@below {{places step 0 of the ring along {"ring"} twice}}
  %r = dist.place %p#3, %m axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x1x4xf32>, tensor<1x2x1x4xf32>) -> tensor<1x2x1x8xf32>
  return %r : tensor<1x2x1x8xf32>
}

// -----

// Blocks do not move around the ring.
dist.mesh @mesh = <["ring"=2]>
func.func @moved_block(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  // expected-note@below {{operand 0 is from here}}
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{reads operand 0, which has blockwise layout [{}, {}, {"ring"}, {"ring"}] in steps {0} of {"ring"}: only the bias of attention and dist.place may}}
  %m = dist.permute %p#3 axes ["ring"] shift 1 : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %r = dist.place %m, %q#3 axes ["ring"] dim 3 shifts [1, 0] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Blocks do not add up.
dist.mesh @mesh = <["ring"=2]>
func.func @added(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-note@below {{operand 1 is from here}}
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{dimension 3 of operand 1: expected layout [{"ring"}] of true size 8 as in operand 0, got [(8{"ring"} shifted by 1)] of 8}}
  %s = nn.add %p#3, %q#3 : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
  %r = dist.place %s axes ["ring"] dim 3 shifts [0] : (tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A block that is read before it has its place.
dist.mesh @mesh = <["ring"=2]>
func.func @read_block(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  // expected-note@below {{operand 0 is from here}}
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{reads operand 0, gradients of attention in steps {0} of the needed {0, 1} of {"ring"}: the others have not been placed}}
  %t = nn.neg %p#3 : tensor<1x2x4x4xf32>
  %r = dist.place %t, %q#3 axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// Chunks of the bias itself.
dist.mesh @mesh = <["ring"=2]>
func.func @no_gradient(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  // expected-note@below {{operand 0 is from here}}
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{places operand 0, which is no part of a gradient in the steps of a ring along {"ring"}}}
  %r = dist.place %b0, %b1 axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// The gradients of two biases.
dist.mesh @mesh = <["ring"=2]>
func.func @two_biases(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-note@below {{operand 1 is from here}}
  %o:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.25 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x4xf32>)
  // expected-error@below {{places parts of different gradients}}
  %r = dist.place %p#3, %o#3 axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x4x4xf32>, tensor<1x2x4x4xf32>) -> tensor<1x2x4x8xf32>
  return %r : tensor<1x2x4x8xf32>
}

// -----

// A sum over the ring that nobody takes: each rank has that of its queries.
dist.mesh @mesh = <["ring"=2]>
func.func @open_sum(
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>},
    %b: tensor<1x2x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x1x8xf32>})
    -> (tensor<1x2x1x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {}, {}]>, dist.global = tensor<1x2x1x8xf32>})
    attributes {dist.spmd = @mesh} {
  %k = dist.permute %x axes ["ring"] shift 1 : (tensor<1x2x4x8xf32>) -> tensor<1x2x4x8xf32>
  %b0 = dist.slice %b axes ["ring"] dims [3] : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x4xf32>
  %b1 = dist.slice %b axes ["ring"] dims [3] shift 1 : (tensor<1x2x1x8xf32>) -> tensor<1x2x1x4xf32>
  %p:4 = nn.attention_grad %x, %x, %x bias %b0 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>)
  %q:4 = nn.attention_grad %x, %k, %k bias %b1 lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x1x4xf32>)
  // expected-note@below {{operand 0 is unreduced over {"ring"} from here on}}
  %r = dist.place %p#3, %q#3 axes ["ring"] dim 3 shifts [0, 1] : (tensor<1x2x1x4xf32>, tensor<1x2x1x4xf32>) -> tensor<1x2x1x8xf32>
  // expected-error@below {{which the signature promises, got [{}, {}, {}, {}] unreduced {"ring"}}}
  return %r : tensor<1x2x1x8xf32>
}
