// RUN: sharding-opt %s --verify-placement --split-input-file --verify-diagnostics

// Rows that took two steps to their experts are in the order of the senders of the second one.

#home = #dist.sharding<@mesh, [{}, {"host", "ep"}, {}]>
#group = #dist.sharding<@mesh, [{"host"}, (2, 2{"ep"}), {}]>
#experts = #dist.sharding<@mesh, [{"host", "ep"}, {}, {}]>
#tokens = #dist.sharding<@mesh, [{"host", "ep"}, {}]>
!choices = tensor<1x2x2xi64, #nn.routed<2, shared = 4>>
!rows = tensor<2x4x6xf32, #nn.routed<2>>
dist.mesh @mesh = <["host"=2, "ep"=2]>
func.func @returns_in_one_step(%x: tensor<1x6xf32> {dist.sharding = #tokens, dist.global = tensor<4x6xf32>},
                               %i: tensor<1x2xi64> {dist.sharding = #tokens, dist.global = tensor<4x2xi64>})
    -> (tensor<1x6xf32> {dist.sharding = #tokens, dist.global = tensor<4x6xf32>}) attributes {dist.spmd = @mesh} {
  %0 = nn.dispatch %i, %i : (tensor<1x2xi64>, tensor<1x2xi64>) -> tensor<2x1x2xi64, #nn.routed<2, shared = 4>>
  %1 = dist.redistribute %0 from [#home] to [#group] : (tensor<2x1x2xi64, #nn.routed<2, shared = 4>>) -> !choices
  %2 = nn.dispatch %x, %i : (tensor<1x6xf32>, tensor<1x2xi64>) -> tensor<2x1x6xf32, #nn.routed<2, shared = 4>>
  %3 = dist.redistribute %2 from [#home] to [#group] : (tensor<2x1x6xf32, #nn.routed<2, shared = 4>>) -> tensor<1x2x6xf32, #nn.routed<2, shared = 4>>
  %4 = dist.axis_index ["host"] chunk 4 : tensor<i64>
  %5 = nn.dispatch %3, %1 offset %4 {nn.table_rows = 8 : i64} : (tensor<1x2x6xf32, #nn.routed<2, shared = 4>>, !choices, tensor<i64>) -> tensor<4x2x6xf32, #nn.routed<2>>
  %6 = dist.redistribute %5 from [#group] to [#experts] : (tensor<4x2x6xf32, #nn.routed<2>>) -> !rows
  // expected-error @+1 {{'dist.redistribute' op expected rows of operand 0 to return in the order in which ranks sent them, got another order}}
  %7 = dist.redistribute %6 from [#experts] to [#home] : (!rows) -> tensor<8x1x6xf32, #nn.routed<2>>
  %8 = nn.combine %7, %i : (tensor<8x1x6xf32, #nn.routed<2>>, tensor<1x2xi64>) -> tensor<1x6xf32>
  return %8 : tensor<1x6xf32>
}

// -----

// A rank of a group sends rows on by the choices of the tokens that came, not by those of its own.

#home = #dist.sharding<@mesh, [{}, {"host", "ep"}, {}]>
#group = #dist.sharding<@mesh, [{"host"}, (2, 2{"ep"}), {}]>
#tokens = #dist.sharding<@mesh, [{"host", "ep"}, {}]>
!sent = tensor<2x1x2xi64, #nn.routed<2, shared = 4>>
!choices = tensor<1x2x2xi64, #nn.routed<2, shared = 4>>
dist.mesh @mesh = <["host"=2, "ep"=2]>
// expected-note @+3 {{operand 0 is of the routing from here}}
// expected-note @+3 {{the choices are of the routing from here}}
func.func @other_choices(%x: tensor<1x6xf32> {dist.sharding = #tokens, dist.global = tensor<4x6xf32>},
                         %i: tensor<1x2xi64> {dist.sharding = #tokens, dist.global = tensor<4x2xi64>},
                         %j: tensor<1x2xi64> {dist.sharding = #tokens, dist.global = tensor<4x2xi64>})
    -> (tensor<1x6xf32> {dist.sharding = #tokens, dist.global = tensor<4x6xf32>}) attributes {dist.spmd = @mesh} {
  %0 = nn.dispatch %j, %j : (tensor<1x2xi64>, tensor<1x2xi64>) -> !sent
  %1 = dist.redistribute %0 from [#home] to [#group] : (!sent) -> !choices
  %2 = nn.dispatch %x, %i : (tensor<1x6xf32>, tensor<1x2xi64>) -> tensor<2x1x6xf32, #nn.routed<2, shared = 4>>
  %3 = dist.redistribute %2 from [#home] to [#group] : (tensor<2x1x6xf32, #nn.routed<2, shared = 4>>) -> tensor<1x2x6xf32, #nn.routed<2, shared = 4>>
  %4 = dist.axis_index ["host"] chunk 4 : tensor<i64>
  // expected-error @+1 {{'nn.dispatch' op expected operand 0 to be rows of the routing of its choices, got rows of another routing}}
  %5 = nn.dispatch %3, %1 offset %4 {nn.table_rows = 8 : i64} : (tensor<1x2x6xf32, #nn.routed<2, shared = 4>>, !choices, tensor<i64>) -> tensor<4x2x6xf32, #nn.routed<2>>
  %6 = nn.combine %5, %1 offset %4 {nn.table_rows = 8 : i64} : (tensor<4x2x6xf32, #nn.routed<2>>, !choices, tensor<i64>) -> tensor<1x2x6xf32, #nn.routed<2, shared = 4>>
  %7 = dist.redistribute %6 from [#group] to [#home] : (tensor<1x2x6xf32, #nn.routed<2, shared = 4>>) -> tensor<2x1x6xf32, #nn.routed<2, shared = 4>>
  %8 = nn.combine %7, %i : (tensor<2x1x6xf32, #nn.routed<2, shared = 4>>, tensor<1x2xi64>) -> tensor<1x6xf32>
  return %8 : tensor<1x6xf32>
}

// -----

// Senders of the second step have rows in the order of the first one, not of their tokens.

#home3 = #dist.sharding<@mesh, [{}, {}, {"host", "ep"}, {}]>
#group3 = #dist.sharding<@mesh, [{"host"}, {}, (2, 4{"ep"}), {}]>
#experts3 = #dist.sharding<@mesh, [{"host", "ep"}, {}, {}, {}]>
#tokens = #dist.sharding<@mesh, [{}, {"host", "ep"}, {}]>
#gathered = #dist.sharding<@mesh, [{}, (2, 4{"ep"}), {}]>
dist.mesh @mesh = <["host"=2, "ep"=2]>
func.func @two_orders(%x: tensor<2x2x6xf32> {nn.input = "x", dist.sharding = #tokens, dist.global = tensor<2x8x6xf32>},
                %i: tensor<2x2x2xi64> {nn.input = "i", dist.sharding = #tokens, dist.global = tensor<2x8x2xi64>})
    -> (tensor<2x2x6xf32> {nn.output = "y", dist.sharding = #tokens, dist.global = tensor<2x8x6xf32>}) attributes {dist.spmd = @mesh} {
  %j0 = nn.dispatch %i, %i : (tensor<2x2x2xi64>, tensor<2x2x2xi64>) -> tensor<2x2x2x2xi64, #nn.routed<2, shared = 4>>
  %j1 = dist.redistribute %j0 from [#home3] to [#group3] : (tensor<2x2x2x2xi64, #nn.routed<2, shared = 4>>) -> tensor<1x2x4x2xi64, #nn.routed<2, shared = 4>>
  %g0 = nn.dispatch %x, %i : (tensor<2x2x6xf32>, tensor<2x2x2xi64>) -> tensor<2x2x2x6xf32, #nn.routed<2, shared = 4>>
  %g1 = dist.redistribute %g0 from [#home3] to [#group3] : (tensor<2x2x2x6xf32, #nn.routed<2, shared = 4>>) -> tensor<1x2x4x6xf32, #nn.routed<2, shared = 4>>
  %o = dist.axis_index ["host"] chunk 4 : tensor<i64>
  %a1 = nn.dispatch %g1, %j1 offset %o {nn.table_rows = 8 : i64} : (tensor<1x2x4x6xf32, #nn.routed<2, shared = 4>>, tensor<1x2x4x2xi64, #nn.routed<2, shared = 4>>, tensor<i64>) -> tensor<4x2x4x6xf32, #nn.routed<2>>
  // expected-error @+1 {{'dist.redistribute' op expected rows of operand 0 in the order of their tokens, got rows in the order of ranks that sent them}}
  %a2 = dist.redistribute %a1 from [#group3] to [#experts3] : (tensor<4x2x4x6xf32, #nn.routed<2>>) -> tensor<2x2x8x6xf32, #nn.routed<2>>
  %gx = dist.redistribute %x from [#tokens] to [#gathered] : (tensor<2x2x6xf32>) -> tensor<2x4x6xf32>
  %gi = dist.redistribute %i from [#tokens] to [#gathered] : (tensor<2x2x2xi64>) -> tensor<2x4x2xi64>
  %b0 = nn.dispatch %gx, %gi offset %o {nn.table_rows = 8 : i64} : (tensor<2x4x6xf32>, tensor<2x4x2xi64>, tensor<i64>) -> tensor<4x2x4x6xf32, #nn.routed<2>>
  %b1 = dist.redistribute %b0 from [#group3] to [#experts3] : (tensor<4x2x4x6xf32, #nn.routed<2>>) -> tensor<2x2x8x6xf32, #nn.routed<2>>
  %s = nn.mul %b1, %a2 : (tensor<2x2x8x6xf32, #nn.routed<2>>, tensor<2x2x8x6xf32, #nn.routed<2>>) -> tensor<2x2x8x6xf32, #nn.routed<2>>
  %r = dist.redistribute %s from [#experts3] to [#group3] : (tensor<2x2x8x6xf32, #nn.routed<2>>) -> tensor<4x2x4x6xf32, #nn.routed<2>>
  %p = nn.combine %r, %gi offset %o {nn.table_rows = 8 : i64} : (tensor<4x2x4x6xf32, #nn.routed<2>>, tensor<2x4x2xi64>, tensor<i64>) -> tensor<2x4x6xf32>
  %q = dist.all_reduce sum %p axes ["host"] : (tensor<2x4x6xf32>) -> tensor<2x4x6xf32>
  %y = dist.redistribute %q from [#gathered] to [#tokens] : (tensor<2x4x6xf32>) -> tensor<2x2x6xf32>
  return %y : tensor<2x2x6xf32>
}

// -----

// The tokens of two hosts follow one another in parts, so an axis alone does not say which a rank has.

#home = #dist.sharding<@mesh, [{}, {}, {"host", "ep"}, {}]>
#group = #dist.sharding<@mesh, [{"host"}, {}, {"ep"}, {}]>
#tokens = #dist.sharding<@mesh, [{}, {"host", "ep"}, {}]>
#gathered = #dist.sharding<@mesh, [{}, {"ep"}, {}]>
dist.mesh @mesh = <["host"=2, "ep"=2]>
func.func @other_tokens(%x: tensor<1x2x6xf32> {nn.input = "x", dist.sharding = #tokens, dist.global = tensor<1x8x6xf32>},
                %i: tensor<1x2x2xi64> {nn.input = "i", dist.sharding = #tokens, dist.global = tensor<1x8x2xi64>})
    -> (tensor<1x2x6xf32> {nn.output = "y", dist.sharding = #tokens, dist.global = tensor<1x8x6xf32>}) attributes {dist.spmd = @mesh} {
  %j0 = nn.dispatch %i, %i : (tensor<1x2x2xi64>, tensor<1x2x2xi64>) -> tensor<2x1x2x2xi64, #nn.routed<2, shared = 4>>
  // expected-error @+1 {{'dist.redistribute' op expected the tokens of operand 0 to have axes that the experts take, got rows of layout [{}, {}, {"host", "ep"}, {}] that become [{"host"}, {}, {"ep"}, {}]}}
  %j1 = dist.redistribute %j0 from [#home] to [#group] : (tensor<2x1x2x2xi64, #nn.routed<2, shared = 4>>) -> tensor<1x1x4x2xi64, #nn.routed<2, shared = 4>>
  %g0 = nn.dispatch %x, %i : (tensor<1x2x6xf32>, tensor<1x2x2xi64>) -> tensor<2x1x2x6xf32, #nn.routed<2, shared = 4>>
  %g1 = dist.redistribute %g0 from [#home] to [#group] : (tensor<2x1x2x6xf32, #nn.routed<2, shared = 4>>) -> tensor<1x1x4x6xf32, #nn.routed<2, shared = 4>>
  %o = dist.axis_index ["host"] chunk 4 : tensor<i64>
  %a1 = nn.dispatch %g1, %j1 offset %o {nn.table_rows = 8 : i64} : (tensor<1x1x4x6xf32, #nn.routed<2, shared = 4>>, tensor<1x1x4x2xi64, #nn.routed<2, shared = 4>>, tensor<i64>) -> tensor<4x1x4x6xf32, #nn.routed<2>>
  %gx = dist.redistribute %x from [#tokens] to [#gathered] : (tensor<1x2x6xf32>) -> tensor<1x4x6xf32>
  %gi = dist.redistribute %i from [#tokens] to [#gathered] : (tensor<1x2x2xi64>) -> tensor<1x4x2xi64>
  %b0 = nn.dispatch %gx, %gi offset %o {nn.table_rows = 8 : i64} : (tensor<1x4x6xf32>, tensor<1x4x2xi64>, tensor<i64>) -> tensor<4x1x4x6xf32, #nn.routed<2>>
  %s = nn.mul %b0, %a1 : (tensor<4x1x4x6xf32, #nn.routed<2>>, tensor<4x1x4x6xf32, #nn.routed<2>>) -> tensor<4x1x4x6xf32, #nn.routed<2>>
  %p = nn.combine %s, %gi offset %o {nn.table_rows = 8 : i64} : (tensor<4x1x4x6xf32, #nn.routed<2>>, tensor<1x4x2xi64>, tensor<i64>) -> tensor<1x4x6xf32>
  %q = dist.all_reduce sum %p axes ["host"] : (tensor<1x4x6xf32>) -> tensor<1x4x6xf32>
  %y = dist.redistribute %q from [#gathered] to [#tokens] : (tensor<1x4x6xf32>) -> tensor<1x2x6xf32>
  return %y : tensor<1x2x6xf32>
}
