// RUN: sharding-opt %s -split-input-file -verify-diagnostics -o %t

func.func @no_results(%x: tensor<4xf32>) {
  // expected-error@+1 {{'rt.kernel' op has no results}}
  rt.kernel %x : (tensor<4xf32>) -> () {
  ^bb0(%a: tensor<4xf32>):
    rt.yield
  }
  return
}

// -----

func.func @counted_by_nothing(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{expected the number of an operand that counts rows, below 1, got 1}}
  %0 = rt.kernel %x counted_by 1 : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

// -----

func.func @counted_by_floats(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{expected rows to be counted by a vector of i64, got 'tensor<4xf32>'}}
  %0 = rt.kernel %x counted_by 0 : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

// -----

func.func @counted_rows_differ(%x: tensor<4xf32>, %n: tensor<1xi64>) -> (tensor<4xf32>, tensor<2x2xf32>) {
  // expected-error@+1 {{expected results with as many rows, which are counted, got 'tensor<4xf32>' and 'tensor<2x2xf32>'}}
  %0:2 = rt.kernel %x, %n counted_by 1 : (tensor<4xf32>, tensor<1xi64>) -> (tensor<4xf32>, tensor<2x2xf32>) {
  ^bb0(%a: tensor<4xf32>, %b: tensor<1xi64>):
    %1 = nn.neg %a : tensor<4xf32>
    %2 = nn.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32>
    rt.yield %1, %2 : tensor<4xf32>, tensor<2x2xf32>
  }
  return %0#0, %0#1 : tensor<4xf32>, tensor<2x2xf32>
}

// -----

func.func @argument_types(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected a region with arguments of the operands' types, ('tensor<4xf32>'), got ('tensor<8xf32>')}}
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<8xf32> {
  ^bb0(%a: tensor<8xf32>):
    %1 = nn.neg %a : tensor<8xf32>
    rt.yield %1 : tensor<8xf32>
  }
  return
}

// -----

func.func @yield_types(%x: tensor<4xf32>) {
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<8xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    // expected-error@+1 {{expected operands of types ('tensor<8xf32>'), got ('tensor<4xf32>')}}
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

func.func @yields_operand(%x: tensor<4xf32>) {
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    // expected-error@+1 {{operand 0: expected a value made in the launch, got an operand of it}}
    rt.yield %a : tensor<4xf32>
  }
  return
}

// -----

func.func @yields_twice(%x: tensor<4xf32>) {
  %0:2 = rt.kernel %x : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    // expected-error@+1 {{operand 1 is yielded twice}}
    rt.yield %1, %1 : tensor<4xf32>, tensor<4xf32>
  }
  return
}

// -----

func.func @number_of_offsets(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected 1 offsets, one for each result, got 2}}
  %0 = rt.kernel %x at [0, 64] : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

func.func @alignment(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected offsets that are multiples of 64, got 16}}
  %0 = rt.kernel %x at [16] : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @collective_in_kernel(%x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-note@+1 {{the kernel}}
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    // expected-error@+1 {{is in a kernel: expected it in an rt.start}}
    %1 = dist.all_reduce sum %a axes ["tp"] : (tensor<4xf32>) -> tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

func.func @outside(%x: tensor<4xf32>) {
  // expected-note@+1 {{required by region isolation constraints}}
  %0 = rt.kernel %x : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    // expected-error@+1 {{using value defined outside the region}}
    %1 = nn.neg %x : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

func.func @compute_stream(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected stream 1 or more, got 0: 0 is the compute stream}}
  %0 = rt.start %x stream 0 : (tensor<4xf32>) -> !rt.future<tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>):
    %1 = dist.all_reduce sum %a axes ["tp"] : (tensor<4xf32>) -> tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

func.func @starts_kernel(%x: tensor<4xf32>) {
  // expected-error@+1 {{expected a region of one collective}}
  %0 = rt.start %x stream 1 : (tensor<4xf32>) -> !rt.future<tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return
}

// -----

dist.mesh @mesh = <["tp"=2]>
func.func @other_order(%x: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>}, %y: tensor<4xf32> {dist.sharding = #dist.sharding<@mesh, [{}]>, dist.global = tensor<4xf32>}) attributes {dist.spmd = @mesh} {
  // expected-error@+1 {{expected a collective of the start's operands whose results it yields, in order}}
  %0 = rt.start %x, %y stream 1 : (tensor<4xf32>, tensor<4xf32>) -> !rt.future<tensor<4xf32>, tensor<4xf32>> {
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
    %1:2 = dist.all_reduce sum %b, %a axes ["tp"] : (tensor<4xf32>, tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
    rt.yield %1#0, %1#1 : tensor<4xf32>, tensor<4xf32>
  }
  return
}

// -----

// expected-error@+1 {{expected tensors of static shape, got 'tensor<?xf32>'}}
func.func @future(%f: !rt.future<tensor<?xf32>>) {
  return
}

// -----

func.func @waits_for_argument(%f: !rt.future<tensor<4xf32>>) {
  // expected-error@+1 {{waits for a value that is not the result of an rt.start}}
  %0 = rt.wait %f : !rt.future<tensor<4xf32>>
  return
}

// -----

func.func @prepares_input(%x: tensor<4x8xf32> {nn.input = "x"}) {
  // expected-error@+1 {{prepares a value that is neither a parameter nor a state of the function}}
  %0 = rt.prepare %x <k = 4, n = 8, panel = 8> at load : tensor<4x8xf32>
  return
}

// -----

// Its columns are not in one piece.
func.func @prepares_columns(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  %0 = nn.slice %w starts [0, 0] limits [4, 4] strides [1, 1] : (tensor<4x8xf32>) -> tensor<4x4xf32>
  // expected-error@+1 {{prepares a value that is neither a parameter nor a state of the function}}
  %1 = rt.prepare %0 <k = 4, n = 4, panel = 8> at load : tensor<4x4xf32>
  return
}

// -----

nn.state @w : tensor<4x8xf32>
func.func @state_at_load(%w: tensor<4x8xf32> {nn.state = "w"}) {
  // expected-error@+1 {{expected to prepare a state at update, got at load}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at load : tensor<4x8xf32>
  return
}

// -----

func.func @parameter_at_update(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected to prepare a parameter at load, got at update}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at update : tensor<4x8xf32>
  return
}

// -----

func.func @use_outside_of_kernel(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{prepares a value at use outside of a kernel: expected it in one}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at use : tensor<4x8xf32>
  return
}

// -----

func.func @load_in_kernel(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  %0 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    // expected-error@+1 {{expected to prepare a value in a kernel at use, got at load}}
    %1 = rt.prepare %a <k = 4, n = 8, panel = 8> at load : tensor<4x8xf32>
    rt.yield %1 : tensor<4x8xf32>
  }
  return
}

// -----

func.func @use_beside_others(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-note@+1 {{the kernel}}
  %0 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    %1 = nn.neg %a : tensor<4x8xf32>
    // expected-error@+1 {{is in a kernel: expected it outside}}
    %2 = rt.prepare %1 <k = 4, n = 8, panel = 8> at use : tensor<4x8xf32>
    rt.yield %2 : tensor<4x8xf32>
  }
  return
}

// -----

func.func @use_without_packing(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  %0 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xbf16> {
  ^bb0(%a: tensor<4x8xf32>):
    // expected-error@+1 {{expected a packing, got none: a kernel casts by nn.cast}}
    %1 = rt.prepare %a at use : tensor<4x8xf32> -> tensor<4x8xbf16>
    rt.yield %1 : tensor<4x8xbf16>
  }
  return
}

// -----

func.func @packed_at_use_read_otherwise(%w: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = rt.kernel %w : (tensor<4x8xf32>) -> tensor<4x8xf32> {
  ^bb0(%a: tensor<4x8xf32>):
    // expected-error@+1 {{expected to be read by rt.kernel only, got 'func.return'}}
    %1 = rt.prepare %a <k = 4, n = 8, panel = 8> at use : tensor<4x8xf32>
    rt.yield %1 : tensor<4x8xf32>
  }
  // expected-note@+1 {{the reader}}
  return %0 : tensor<4x8xf32>
}

// -----

func.func @prepares_nothing(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected a packing or another element type, got neither}}
  %0 = rt.prepare %w at load : tensor<4x8xf32>
  return
}

// -----

func.func @prepares_another_shape(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected the same shape, and the same elements or a cast between f32, bf16 and f16, got 'tensor<8x4xbf16>' of 'tensor<4x8xf32>'}}
  %0 = rt.prepare %w at load : tensor<4x8xf32> -> tensor<8x4xbf16>
  return
}

// -----

func.func @prepares_integers(%w: tensor<4x8xi32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected the same shape, and the same elements or a cast between f32, bf16 and f16, got 'tensor<4x8xf32>' of 'tensor<4x8xi32>'}}
  %0 = rt.prepare %w at load : tensor<4x8xi32> -> tensor<4x8xf32>
  return
}

// -----

func.func @unknown_time(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected load, update or use as the time, got 'night'}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at night : tensor<4x8xf32>
  return
}

// -----

func.func @packing_batch(%w: tensor<3x4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected a packing of the weight's shape, 'tensor<3x4x8xf32>', got 2x4x8}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8, batch = 2> at load : tensor<3x4x8xf32>
  return
}

// -----

func.func @packing_shape(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected a packing of the weight's shape, 'tensor<4x8xf32>', got 8x4}}
  %0 = rt.prepare %w <k = 4, n = 8, transposed = true, panel = 8> at load : tensor<4x8xf32>
  return
}

// -----

func.func @panel(%w: tensor<4x8xf32> {nn.parameter = "w"}) {
  // expected-error@+1 {{expected panel of at least 1, got 0}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 0> at load : tensor<4x8xf32>
  return
}

// -----

func.func @reads_packed(%w: tensor<4x8xf32> {nn.parameter = "w"}) -> tensor<4x8xf32> {
  // expected-error@+1 {{expected to be read by rt.kernel only, got 'func.return'}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at load : tensor<4x8xf32>
  // expected-note@+1 {{the reader}}
  return %0 : tensor<4x8xf32>
}

// -----

func.func @reads_packed_later(%w: tensor<4x8xf32> {nn.parameter = "w"}, %x: tensor<4xf32>) -> tensor<4x8xf32> {
  // expected-error@+1 {{expected to be read by rt.kernel only, got 'func.return'}}
  %0 = rt.prepare %w <k = 4, n = 8, panel = 8> at load : tensor<4x8xf32>
  %1 = dist.after %0, %x : tensor<4x8xf32>, tensor<4xf32>
  // expected-note@+1 {{the reader}}
  return %1 : tensor<4x8xf32>
}

// -----

// expected-error@+1 {{'rt.arena': expected a number of bytes (i64) on a function, got "big"}}
func.func @arena() attributes {rt.arena = "big"} {
  return
}

// -----

// expected-error@+1 {{'rt.target': expected the name of a target on a function, got 3 : i64}}
func.func @target_of_wrong_type() attributes {rt.target = 3 : i64} {
  return
}

// -----

// expected-error@+1 {{unknown attribute 'rt.size'}}
func.func @unknown() attributes {rt.size = 1 : i64} {
  return
}

// -----

func.func @over_count(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{expected the names of 1 states, one for each result, got 2}}
  %0 = rt.kernel %x over ["s", ""] : (tensor<4xf32>) -> tensor<4xf32> {
  ^bb0(%a: tensor<4xf32>):
    %1 = nn.neg %a : tensor<4xf32>
    rt.yield %1 : tensor<4xf32>
  }
  return %0 : tensor<4xf32>
}

// -----

// expected-error@+1 {{'rt.prefetch': expected a number of weights (i64) on a function, got -1 : i64}}
func.func @prefetch() attributes {rt.prefetch = -1 : i64} { return }

// -----

// expected-error@+1 {{'rt.expert_chunks': expected a number of chunks (i64) on a function, got "all"}}
func.func @expert_chunks() attributes {rt.expert_chunks = "all"} { return }
