// RUN: sharding-opt %s --report-communication="file=%t.json" -o /dev/null
// RUN: FileCheck %s --check-prefix=JSON --input-file=%t.json
// RUN: sharding-opt %s --report-file=%t.txt -o /dev/null
// RUN: FileCheck %s --check-prefix=TEXT --input-file=%t.txt

// Launches of different roles are different entries. Data is the role of those that name none.
// JSON:      "kind": "all_gather"
// JSON-NEXT: "axes": [
// JSON-NEXT:   "dp"
// JSON-NEXT: ],
// JSON-NEXT: "role": "data",
// JSON:      "count": 2
// JSON:      "kind": "all_gather"
// JSON-NEXT: "axes": [
// JSON-NEXT:   "dp"
// JSON-NEXT: ],
// JSON-NEXT: "role": "weights",
// JSON:      "count": 1

// TEXT:      all_gather dp 0 2
// TEXT-NEXT: all_gather dp weights 0 1
// TEXT-NEXT: total 3
#place = loc("model.up")
dist.mesh @mesh = <["dp"=2], device = "h100">
func.func @main(
    %x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x8xf32>},
    %w: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"dp"}, {}]>, dist.global = tensor<4x8xf32>})
    -> (tensor<4x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {}]>, dist.global = tensor<4x8xf32>})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["dp"] dims [0] : (tensor<2x8xf32>) -> tensor<4x8xf32> loc(#place)
  %1 = dist.all_gather %w axes ["dp"] dims [0] role weights : (tensor<2x8xf32>) -> tensor<4x8xf32> loc(#place)
  %2 = dist.all_gather %w axes ["dp"] dims [0] : (tensor<2x8xf32>) -> tensor<4x8xf32> loc(#place)
  %3 = nn.add %0, %1 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  %4 = nn.add %3, %2 : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x8xf32>
  return %4 : tensor<4x8xf32>
}
