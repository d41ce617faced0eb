// RUN: sharding-opt %s --verify-placement -split-input-file -verify-diagnostics -o %t

// Order.

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @never(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{'rt.start' op is never waited for}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %0 : tensor<16x8xf32>
  }
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @twice(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %0 : tensor<16x8xf32>
  }
  %0 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  // expected-error@+1 {{'rt.wait' op waits a second time for a collective}}
  %1 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  return
}

// -----

dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @streams(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>},
                   %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp", "tp"}>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{the other starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<4x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_reduce sum %a axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %0 : tensor<4x8xf32>
  }
  // expected-error@+1 {{hands a collective over {"dp", "tp"} to stream 2 while one over {"tp"} is in flight on stream 1, both of role data: expected one stream, which keeps their order}}
  %g = rt.start %y stream 2 : (tensor<4xf32>) -> !rt.future<tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>):
    %0 = dist.all_reduce sum %a axes ["dp", "tp"] : (tensor<4xf32>) -> tensor<4xf32>
    rt.yield %0 : tensor<4xf32>
  }
  %0 = rt.wait %f : !rt.future<tensor<4x8xf32>>
  %1 = rt.wait %g : !rt.future<tensor<4xf32>>
  return
}

// -----

// Gradients over "dp" may be in flight beside weights over it, but not beside gradients over all
// axes on another stream.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @roles(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>},
                 %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp", "tp"}>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{the other starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<8x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["dp"] dims [0] role gradients : (tensor<4x8xf32>) -> tensor<8x8xf32>
    rt.yield %0 : tensor<8x8xf32>
  }
  %g = rt.start %x stream 2 : (tensor<4x8xf32>) -> !rt.future<tensor<8x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["dp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<8x8xf32>
    rt.yield %0 : tensor<8x8xf32>
  }
  // expected-error@+1 {{hands a collective over {"dp", "tp"} to stream 3 while one over {"dp"} is in flight on stream 1, both of role gradients: expected one stream, which keeps their order}}
  %h = rt.start %y stream 3 : (tensor<4xf32>) -> !rt.future<tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>):
    %0 = dist.all_reduce sum %a axes ["dp", "tp"] role gradients : (tensor<4xf32>) -> tensor<4xf32>
    rt.yield %0 : tensor<4xf32>
  }
  %0 = rt.wait %f : !rt.future<tensor<8x8xf32>>
  %1 = rt.wait %g : !rt.future<tensor<8x8xf32>>
  %2 = rt.wait %h : !rt.future<tensor<4xf32>>
  return
}

// -----

// A stream has one role, in the whole function.
dist.mesh @mesh = <["dp"=2]>
func.func @mixed(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<8x8xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{the first starts here}}
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<8x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_gather %a axes ["dp"] dims [0] : (tensor<4x8xf32>) -> tensor<8x8xf32>
    rt.yield %0 : tensor<8x8xf32>
  }
  %0 = rt.wait %f : !rt.future<tensor<8x8xf32>>
  // expected-error@+1 {{hands a collective to stream 1: expected role data, as the stream's first has, got weights}}
  %g = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<8x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %1 = dist.all_gather %a axes ["dp"] dims [0] role weights : (tensor<4x8xf32>) -> tensor<8x8xf32>
    rt.yield %1 : tensor<8x8xf32>
  }
  %1 = rt.wait %g : !rt.future<tensor<8x8xf32>>
  return
}

// -----

// The analysis follows collectives in flight along one block, the function's own.
dist.mesh @mesh = <["tp"=4]>
func.func @branch(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>},
                  %c: tensor<i1> {dist.sharding = #dist.sharding<@mesh, []>, dist.global = tensor<i1>}) attributes {dist.spmd = @mesh} {
  %0 = tensor.extract %c[] : tensor<i1>
  scf.if %0 {
    // expected-error@+1 {{'rt.start' op expects parent op 'func.func'}}
    %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
    ^bb0(%a: tensor<4x8xf32>):
      %1 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
      rt.yield %1 : tensor<16x8xf32>
    }
  }
  return
}

// -----

// Groups that share a rank at most, or not at the same time, may use other
// streams.
dist.mesh @mesh = <["dp"=2, "tp"=4]>
func.func @fine(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>},
                %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}], unreduced = {"dp"}>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<4x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %0 = dist.all_reduce sum %a axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %0 : tensor<4x8xf32>
  }
  %g = rt.start %y stream 2 : (tensor<4xf32>) -> !rt.future<tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>):
    %0 = dist.all_reduce sum %a axes ["dp"] : (tensor<4xf32>) -> tensor<4xf32>
    rt.yield %0 : tensor<4xf32>
  }
  %0 = rt.wait %f : !rt.future<tensor<4x8xf32>>
  %h = rt.start %x stream 3 : (tensor<4x8xf32>) -> !rt.future<tensor<4x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %2 = dist.all_reduce sum %a axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %2 : tensor<4x8xf32>
  }
  %1 = rt.wait %g : !rt.future<tensor<4xf32>>
  %2 = rt.wait %h : !rt.future<tensor<4x8xf32>>
  return
}

// -----

// Places.

func.func @without_offsets(%x: tensor<32xf32>) -> tensor<32xf32> attributes {rt.arena = 128 : i64} {
  // expected-error@+1 {{has no offsets: expected them, as the function has an arena}}
  %0 = rt.kernel %x : (tensor<32xf32>) -> tensor<32xf32> {
  ^bb0(%a: tensor<32xf32>):
    %1 = nn.exp %a : tensor<32xf32>
    rt.yield %1 : tensor<32xf32>
  }
  return %0 : tensor<32xf32>
}

// -----

func.func @outside(%x: tensor<32xf32>) -> tensor<32xf32> attributes {rt.arena = 128 : i64} {
  // expected-error@+1 {{writes result 0 to 64 .. 192, outside of the arena of 128 bytes}}
  %0 = rt.kernel %x at [64] : (tensor<32xf32>) -> tensor<32xf32> {
  ^bb0(%a: tensor<32xf32>):
    %1 = nn.exp %a : tensor<32xf32>
    rt.yield %1 : tensor<32xf32>
  }
  return %0 : tensor<32xf32>
}

// -----

func.func @needed_later(%x: tensor<32xf32>) -> (tensor<32xf32>, tensor<4x8xf32>) attributes {rt.arena = 256 : i64} {
  // expected-note@+1 {{the value is from here}}
  %0 = rt.kernel %x at [0] : (tensor<32xf32>) -> tensor<32xf32> {
  ^bb0(%a: tensor<32xf32>):
    %3 = nn.exp %a : tensor<32xf32>
    rt.yield %3 : tensor<32xf32>
  }
  %1 = nn.reshape %0 : (tensor<32xf32>) -> tensor<4x8xf32>
  // expected-error@+1 {{writes result 0 to 64 .. 192, over a value that is needed later}}
  %2 = rt.kernel %x at [64] : (tensor<32xf32>) -> tensor<32xf32> {
  ^bb0(%a: tensor<32xf32>):
    %3 = nn.neg %a : tensor<32xf32>
    rt.yield %3 : tensor<32xf32>
  }
  // expected-note@+1 {{and needed here}}
  return %2, %1 : tensor<32xf32>, tensor<4x8xf32>
}

// -----

func.func @over_operand(%x: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {rt.arena = 256 : i64} {
  %0 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  // expected-error@+1 {{writes result 0 to 0 .. 128, over operand 0, which it reads at other places}}
  %1 = rt.kernel %0 at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.softmax %a dim 1 : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  return %1 : tensor<4x8xf32>
}

// -----

// Element by element, but shifted.
func.func @beside_operand(%x: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {rt.arena = 256 : i64} {
  %0 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  // expected-error@+1 {{writes result 0 to 64 .. 192, over operand 0, which it reads at other places}}
  %1 = rt.kernel %0 at [64] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.neg %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  return %1 : tensor<4x8xf32>
}

// -----

// The same buffer twice, once in another shape.
func.func @over_both(%x: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {rt.arena = 256 : i64} {
  %0 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %1 = nn.reshape %0 : (tensor<4x8xf32>) -> tensor<8x4xf32>
  // expected-error@+1 {{writes result 0 to 0 .. 128, over operands 0 and 1, which it reads both}}
  %2 = rt.kernel %0, %1 at [0] : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<8x4xf32>):
    %3 = nn.transpose %b [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
    %4 = nn.add %a, %3 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %4 : tensor<4x8xf32>
  }
  return %2 : tensor<4x8xf32>
}

// -----

func.func @two_results(%x: tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) attributes {rt.arena = 256 : i64} {
  // expected-error@+1 {{writes result 1 to 64 .. 192, which holds another of its results}}
  %0:2 = rt.kernel %x at [0, 64] : (tensor<4x8xf32>) -> (tensor<4x8xf32>, tensor<4x8xf32>) {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    %4 = nn.neg %a : tensor<4x8xf32>
    rt.yield %3, %4 : tensor<4x8xf32>, tensor<4x8xf32>
  }
  return %0#0, %0#1 : tensor<4x8xf32>, tensor<4x8xf32>
}

// -----

// In flight.

dist.mesh @mesh = <["tp"=4]>
func.func @operand_in_flight(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh, rt.arena = 640 : i64} {
  // expected-note@+1 {{the value is from here}}
  %0 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.exp %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  // expected-note@+1 {{a collective in flight reads it}}
  %f = rt.start %0 stream 1 at [128] : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %3 : tensor<16x8xf32>
  }
  // expected-error@+1 {{writes result 0 to 0 .. 128, over a value that is needed later}}
  %1 = rt.kernel %0 at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.neg %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %2 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  return
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @result_in_flight(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>}) attributes {dist.spmd = @mesh, rt.arena = 640 : i64} {
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x stream 1 at [128] : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %3 : tensor<16x8xf32>
  }
  // expected-error@+1 {{writes result 0 to 512 .. 640, where a collective in flight writes}}
  %1 = rt.kernel %x at [512] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.neg %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  // No op reads it, yet it is written until here.
  %2 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  return
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @start_over_operand(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}], unreduced = {"tp"}>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh, rt.arena = 128 : i64} {
  // expected-note@+1 {{the value is from here}}
  %0 = rt.kernel %x at [0] : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = nn.neg %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  // expected-error@+2 {{writes result 0 to 0 .. 128, over a value that is needed later}}
  // expected-note@+1 {{a collective in flight reads it}}
  %f = rt.start %0 stream 1 at [0] : (tensor<4x8xf32>) -> !rt.future<tensor<4x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = dist.all_reduce sum %a axes ["tp"] : (tensor<4x8xf32>) -> tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %1 = rt.wait %f : !rt.future<tensor<4x8xf32>>
  return
}

// -----

// Placement, through regions: what is in a launch is proved as outside.

dist.mesh @mesh = <["tp"=4]>
func.func @unreduced(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<4x32xf32>},
                     %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {"tp"}]>, dist.global = tensor<8x32xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>}) attributes {dist.spmd = @mesh} {
  %0 = rt.kernel %x, %w : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>, %b: tensor<8x8xf32>):
    // expected-note@+1 {{operand 0 is unreduced over {"tp"} from here on}}
    %3 = nn.linear %a, %b : (tensor<4x8xf32>, tensor<8x8xf32>) -> tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  %1 = rt.kernel %0 : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    // expected-error@+1 {{'nn.relu' op is not linear in operand 0, which is unreduced over {"tp"}}}
    %3 = nn.relu %a : tensor<4x8xf32>
    rt.yield %3 : tensor<4x8xf32>
  }
  return %1 : tensor<4x8xf32>
}

// -----

dist.mesh @mesh = <["tp"=4]>
func.func @promise(%x: tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<16x8xf32>})
    -> (tensor<16x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {}]>, dist.global = tensor<64x8xf32>}) attributes {dist.spmd = @mesh} {
  %f = rt.start %x stream 1 : (tensor<4x8xf32>) -> !rt.future<tensor<16x8xf32>> {
  ^bb0(%a: tensor<4x8xf32>):
    %3 = dist.all_gather %a axes ["tp"] dims [0] : (tensor<4x8xf32>) -> tensor<16x8xf32>
    rt.yield %3 : tensor<16x8xf32>
  }
  // expected-note@+1 {{operand 0 is from here}}
  %0 = rt.wait %f : !rt.future<tensor<16x8xf32>>
  // expected-error@+1 {{result 0: expected layout [{"tp"}, {}], which the signature promises, got [{}, {}]}}
  return %0 : tensor<16x8xf32>
}
