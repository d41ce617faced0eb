// RUN: rm -f %t.json && sharding-opt %s --report-communication="file=%t.json" | FileCheck %s --check-prefix=IR
// RUN: FileCheck %s --check-prefix=JSON --input-file=%t.json
// RUN: sharding-opt %s --report-file=%t.txt -o %t.mlir
// RUN: FileCheck %s --check-prefix=TEXT --input-file=%t.txt
// RUN: sharding-opt %s --report-communication -o %t.mlir 2>&1 | FileCheck %s --check-prefix=TEXT

// IR: dist.all_gather

// Bytes are (k - 1)/k of the larger side, all-reduces twice that; slices send nothing.
// JSON:      "ranks": 8
// JSON:      "dp": 2
// JSON-NEXT: "tp": 4
// JSON:      "device": "h100"
// JSON-NEXT: "device_memory": 80000000000
// JSON-NEXT: "target": "cpu"
// JSON:      "kind": "all_gather"
// JSON:      "count": 2
// JSON-NEXT: "bytes_per_rank": 384
// JSON:      "line": 12
// JSON-NEXT: "name": "model.layers.0.mlp.up"
// JSON:      "kind": "all_gather"
// JSON:      "count": 1
// JSON-NEXT: "bytes_per_rank": 192
// JSON:      "name": "model.layers.1.mlp.up"
// JSON:      "kind": "all_reduce"
// JSON:      "axes": [
// JSON-NEXT:   "dp"
// JSON-NEXT:   "tp"
// JSON:      "dims": []
// JSON:      "dtype": "f32"
// JSON:      "bytes_per_rank": 448
// JSON:      "kind": "all_to_all"
// JSON:      "dims": [
// JSON-NEXT:   0
// JSON-NEXT:   1
// JSON:      "bytes_per_rank": 48
// JSON:      "kind": "permute"
// JSON:      "bytes_per_rank": 256
// JSON:      "bytes_per_rank": 1328
// JSON-NEXT: "bytes_of_all_ranks": 10624
// JSON-NEXT: "launches_per_rank": 6
// JSON:      "communication": {
// JSON:      "exposed_seconds":
// JSON:      "run_seconds":
// JSON:      "weights": 256
// JSON:      "warnings": [
// JSON:      "message": "gathers the whole of a 8x8 tensor of f32 on every rank"
// JSON:      "name": "model.layers.0.mlp.up"
// JSON:      "bytes": 384
// JSON:      "name": "model.layers.1.mlp.up"
// JSON:      "bytes": 192

// TEXT:      plan for 8 ranks, mesh dp=2,tp=4, device h100
// TEXT-NEXT: time {{.*}} us a run by the cost model: kernels {{.*}}, communication {{.*}} us, of which
// TEXT:      weights 256 B
// TEXT:      time, per rank and run, by the cost model
// TEXT:      all_gather tp 0 3 192 B 576 B f32 model.layers.{0,1}.mlp.up (model.py:12)
// TEXT-NEXT: all_reduce dp,tp
// TEXT-NEXT: all_to_all tp 0 to 1
// TEXT-NEXT: permute
// TEXT-NEXT: total 6 1.30 KiB
// TEXT-NEXT: warnings
// TEXT-NEXT: 2x gathers the whole of a 8x8 tensor of f32 on every rank, 576 B together
// TEXT-NEXT:   at model.layers.{0,1}.mlp.up (model.py:12)
#file = loc("src/model.py":12:0)
#layer0 = loc("model.layers.0.mlp.up"(#file))
#layer1 = loc("model.layers.1.mlp.up"(#file))
dist.mesh @mesh = <["dp"=2, "tp"=4], device = "h100">
func.func @main(
    %x: tensor<2x8xf32> {dist.sharding = #dist.sharding<@mesh, [{"tp"}, {} ]>, dist.global = tensor<8x8xf32>, nn.input = "x"},
    %w: tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<8x8xf32>, nn.parameter = "w"})
    -> (tensor<8x8xf32> {dist.sharding = #dist.sharding<@mesh, [{}, {} ]>, dist.global = tensor<8x8xf32>, nn.output = "y"})
    attributes {dist.spmd = @mesh} {
  %0 = dist.all_gather %x axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32> loc(#layer0)
  %1 = dist.slice %0 axes ["tp"] dims [0] : (tensor<8x8xf32>) -> tensor<2x8xf32>
  %2 = dist.all_gather %1 axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32> loc(#layer0)
  %3 = dist.slice %2 axes ["tp"] dims [0] : (tensor<8x8xf32>) -> tensor<2x8xf32>
  %4 = dist.all_gather %3 axes ["tp"] dims [0] : (tensor<2x8xf32>) -> tensor<8x8xf32> loc(#layer1)
  %5 = dist.partial %4 axes ["dp", "tp"] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %6 = dist.all_reduce sum %5 axes ["dp", "tp"] : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %7 = dist.slice %6 axes ["tp"] dims [0] : (tensor<8x8xf32>) -> tensor<2x8xf32>
  %8 = dist.all_to_all %7 axes ["tp"] from [0] to [1] : (tensor<2x8xf32>) -> tensor<8x2xf32>
  %9 = dist.permute %6 axes ["tp"] shift 1 : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %9 : tensor<8x8xf32>
}
