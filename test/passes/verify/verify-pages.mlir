// RUN: sharding-opt %s --split-input-file --verify-placement --verify-diagnostics

// Two groups of requests, and ranks of a group with a head each: the rows of the step are written before they are read.

#groups = #dist.sharding<@mesh, [{"tp":(1)2}, {}]>
#tables = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}]>
#rows = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {"tp":(2)2}, {}]>
#cache = #dist.sharding<@mesh, [{"tp":(1)2}, {}, {}, {"tp":(2)2}, {}]>
!global = tensor<2x4x2x2x8xf32>
!pages = tensor<1x4x2x1x8xf32>
!row = tensor<1x3x1x8xf32>
dist.mesh @mesh = <["tp"=4]>
nn.state @keys {dist.sharding = #cache, fill = 0.0 : f32, role = "cache"} : !global
func.func @written(%q: !row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, %slots: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %t: tensor<1x2x2xi64> {dist.sharding = #tables, dist.global = tensor<2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %l: tensor<1x2xi64> {dist.sharding = #groups, dist.global = tensor<2x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"})
    -> (!row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"}) attributes {dist.spmd = @mesh} {
  %0 = nn.page_write %k, %q, %slots : (!pages, !row, tensor<1x3xi64>) -> !pages
  %1 = nn.paged_attention %q, %0, %0 tables %t starts %s lengths %l scale 0.5 : (!row, !pages, !pages, tensor<1x2x2xi64>, tensor<1x3xi64>, tensor<1x2xi64>) -> !row
  return %1, %0 : !row, !pages
}
func.func @read_before(%q: !row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, %slots: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %t: tensor<1x2x2xi64> {dist.sharding = #tables, dist.global = tensor<2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %l: tensor<1x2xi64> {dist.sharding = #groups, dist.global = tensor<2x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"})
    -> (!row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"}) attributes {dist.spmd = @mesh} {
  // expected-note@below {{the new value is from here}}
  %0 = nn.page_write %k, %q, %slots : (!pages, !row, tensor<1x3xi64>) -> !pages
  // expected-error@below {{'nn.paged_attention' op expected operand 2 to be the new value of the state "keys", got rows that the step does not write before the op reads them}}
  %1 = nn.paged_attention %q, %0, %k tables %t starts %s lengths %l scale 0.5 : (!row, !pages, !pages, tensor<1x2x2xi64>, tensor<1x3xi64>, tensor<1x2xi64>) -> !row
  return %1, %0 : !row, !pages
}
func.func @written_again(%q: !row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, %slots: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %t: tensor<1x2x2xi64> {dist.sharding = #tables, dist.global = tensor<2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #groups, dist.global = tensor<2x3xi64>},
                   %l: tensor<1x2xi64> {dist.sharding = #groups, dist.global = tensor<2x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"})
    -> (!row {dist.sharding = #rows, dist.global = tensor<2x3x2x8xf32>}, !pages {dist.sharding = #cache, dist.global = !global, nn.state = "keys"}) attributes {dist.spmd = @mesh} {
  %0 = nn.page_write %k, %q, %slots : (!pages, !row, tensor<1x3xi64>) -> !pages
  // expected-error@below {{'nn.paged_attention' op expected operand 1 to be the new value of the state "keys", got rows of other writes}}
  %1 = nn.paged_attention %q, %0, %0 tables %t starts %s lengths %l scale 0.5 : (!row, !pages, !pages, tensor<1x2x2xi64>, tensor<1x3xi64>, tensor<1x2xi64>) -> !row
  // expected-note@below {{the new value is from here}}
  %2 = nn.page_write %0, %1, %slots : (!pages, !row, tensor<1x3xi64>) -> !pages
  return %1, %2 : !row, !pages
}

// -----

// Pages are dealt over two ranks, whose parts of attention are exchanged and merged.

#all = #dist.sharding<@mesh, [{}, {}]>
#tables = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}]>
#rows = #dist.sharding<@mesh, [{}, {}, {"tp"}, {}]>
#whole = #dist.sharding<@mesh, [{}, {}, {}, {}]>
#cache = #dist.sharding<@mesh, [{}, {"tp"}, {}, {}, {}]>
!pages = tensor<1x4x2x2x8xf32>
!q = tensor<1x3x2x8xf32>
!t = tensor<1x1x2x2xi64>
dist.mesh @mesh = <["tp"=2]>
func.func @merged(%q: !q {dist.sharding = #whole, dist.global = !q}, %t: !t {dist.sharding = #tables, dist.global = tensor<1x2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #all, dist.global = tensor<1x3xi64>},
                  %l: tensor<1x2xi64> {dist.sharding = #all, dist.global = tensor<1x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = tensor<1x8x2x2x8xf32>})
    -> (tensor<1x3x1x8xf32> {dist.sharding = #rows, dist.global = !q}) attributes {dist.spmd = @mesh} {
  %0 = nn.iota dim 0 : tensor<2xi64>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<2xi64>) -> tensor<1xi64>
  %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %1 scale 0.5 {deal = 2 : i64} : (!q, !pages, !pages, !t, tensor<1x3xi64>, tensor<1x2xi64>, tensor<1xi64>) -> (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>)
  %2:2 = dist.all_to_all %p, %e axes ["tp"] from [1, 1] to [3, 3] : (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>) -> (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>)
  %3 = nn.merge_parts %2#0, %2#1 : (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>) -> tensor<1x3x1x8xf32>
  return %3 : tensor<1x3x1x8xf32>
}
func.func @twice(%q: !q {dist.sharding = #whole, dist.global = !q}, %t: !t {dist.sharding = #tables, dist.global = tensor<1x2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #all, dist.global = tensor<1x3xi64>},
                  %l: tensor<1x2xi64> {dist.sharding = #all, dist.global = tensor<1x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = tensor<1x8x2x2x8xf32>})
    -> (tensor<1x3x1x8xf32> {dist.sharding = #rows, dist.global = !q}) attributes {dist.spmd = @mesh} {
  %0 = nn.iota dim 0 : tensor<2xi64>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<2xi64>) -> tensor<1xi64>
  // expected-note@below {{the attention}}
  %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %1 scale 0.5 {deal = 2 : i64} : (!q, !pages, !pages, !t, tensor<1x3xi64>, tensor<1x2xi64>, tensor<1xi64>) -> (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>)
  %2:2 = dist.all_to_all %p, %e axes ["tp"] from [1, 1] to [3, 3] : (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>) -> (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>)
  // expected-error@below {{'nn.concat' op takes or joins parts in operand 0: expected a merge to read all parts of the attention, each once}}
  %3 = nn.concat %2#0, %2#0 dim 1 : (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1x8xf32>) -> tensor<1x4x3x1x8xf32>
  %4 = nn.concat %2#1, %2#1 dim 1 : (tensor<1x2x3x1xf32>, tensor<1x2x3x1xf32>) -> tensor<1x4x3x1xf32>
  %5 = nn.merge_parts %3, %4 : (tensor<1x4x3x1x8xf32>, tensor<1x4x3x1xf32>) -> tensor<1x3x1x8xf32>
  return %5 : tensor<1x3x1x8xf32>
}
func.func @equal_deals(%q: !q {dist.sharding = #whole, dist.global = !q}, %t: !t {dist.sharding = #tables, dist.global = tensor<1x2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #all, dist.global = tensor<1x3xi64>},
                  %l: tensor<1x2xi64> {dist.sharding = #all, dist.global = tensor<1x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = tensor<1x8x2x2x8xf32>})
    -> (tensor<1x3x1x8xf32> {dist.sharding = #rows, dist.global = !q}) attributes {dist.spmd = @mesh} {
  %1 = nn.constant dense<1> : tensor<1xi64>
  // expected-error@below {{'nn.paged_attention' op expected deals with a number of its own for each range of pages, got equal ones}}
  %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %1 scale 0.5 {deal = 2 : i64} : (!q, !pages, !pages, !t, tensor<1x3xi64>, tensor<1x2xi64>, tensor<1xi64>) -> (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>)
  %2:2 = dist.all_to_all %p, %e axes ["tp"] from [1, 1] to [3, 3] : (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>) -> (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>)
  %3 = nn.merge_parts %2#0, %2#1 : (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>) -> tensor<1x3x1x8xf32>
  return %3 : tensor<1x3x1x8xf32>
}
func.func @other_lses(%q: !q {dist.sharding = #whole, dist.global = !q}, %t: !t {dist.sharding = #tables, dist.global = tensor<1x2x2x2xi64>}, %s: tensor<1x3xi64> {dist.sharding = #all, dist.global = tensor<1x3xi64>},
                  %l: tensor<1x2xi64> {dist.sharding = #all, dist.global = tensor<1x2xi64>}, %k: !pages {dist.sharding = #cache, dist.global = tensor<1x8x2x2x8xf32>})
    -> (tensor<1x3x1x8xf32> {dist.sharding = #rows, dist.global = !q}) attributes {dist.spmd = @mesh} {
  %0 = nn.iota dim 0 : tensor<2xi64>
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<2xi64>) -> tensor<1xi64>
  // expected-note@below {{operand 0 is of the attention from here}}
  %p, %e = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %1 scale 0.5 {deal = 2 : i64} : (!q, !pages, !pages, !t, tensor<1x3xi64>, tensor<1x2xi64>, tensor<1xi64>) -> (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>)
  // expected-note@below {{operand 1 is of the attention from here}}
  %o, %f = nn.paged_attention %q, %k, %k tables %t starts %s lengths %l deals %1 scale 0.25 {deal = 2 : i64} : (!q, !pages, !pages, !t, tensor<1x3xi64>, tensor<1x2xi64>, tensor<1xi64>) -> (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>)
  %2:2 = dist.all_to_all %p, %f axes ["tp"] from [1, 1] to [3, 3] : (tensor<1x1x3x2x8xf32>, tensor<1x1x3x2xf32>) -> (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>)
  // expected-error@below {{'nn.merge_parts' op expected operand 1 to be the log-sum-exps of the parts in operand 0, got others}}
  %3 = nn.merge_parts %2#0, %2#1 : (tensor<1x2x3x1x8xf32>, tensor<1x2x3x1xf32>) -> tensor<1x3x1x8xf32>
  return %3 : tensor<1x3x1x8xf32>
}
