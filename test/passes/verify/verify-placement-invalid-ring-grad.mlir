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
  // expected-error@below {{result 0 has layout [{}, {}, (8{"ring"} shifted by 1), {}]}}
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
  // expected-error@below {{result 0 has layout [{}, {}, {"ring"}, {}] in steps {0} of {"ring"}}}
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
  // expected-error@below {{dimension 2 of operand 1 has layout [(8{"ring"} shifted by 1)] of true size 8, expected [{"ring"}] of 8 as in operand 0}}
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

// The gradient of a bias would be a block of rows and columns.
dist.mesh @mesh = <["ring"=2]>
func.func @bias_gradient(
    // expected-note@below {{operand 1 is from here}}
    %x: tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>},
    %l: tensor<1x2x4xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}]>, dist.global = tensor<1x2x8xf32>})
    -> (tensor<1x2x4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}, {"ring"}, {}]>, dist.global = tensor<1x2x8x8xf32>})
    attributes {dist.spmd = @mesh} {
  %z = nn.constant dense<0.0> : tensor<1x1x1x1xf32>
  // expected-error@below {{has the gradient of a bias and keys that are sharded over {"ring"}, as the queries}}
  %a:4 = nn.attention_grad %x, %x, %x bias %z lse %l delta %l cotangent %x scale 0.5 : (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x1x1x1xf32>, tensor<1x2x4xf32>, tensor<1x2x4xf32>, tensor<1x2x4x8xf32>) -> (tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x2x4x8xf32>, tensor<1x1x1x1xf32>)
  return %a#0 : tensor<1x2x4x8xf32>
}
