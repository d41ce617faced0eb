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
