// RUN: sharding-opt %s --parallelize="mesh=tp=2 sequence-parallel=off" --report-file=%t.json --remarks=applied -o %t.mlir 2>&1 | FileCheck %s --check-prefix=REMARK
// RUN: FileCheck %s --check-prefix=JSON --input-file=%t.json
// RUN: sharding-opt %t.mlir --report-file=%t.txt | FileCheck %s --check-prefix=IR
// RUN: FileCheck %s --check-prefix=TEXT --input-file=%t.txt
// RUN: sharding-opt %s --parallelize="mesh=tp=2" --remarks=declined -o %t.mlir 2>&1 | FileCheck %s --check-prefix=NONE --allow-empty
// RUN: not sharding-opt %s --remarks=refused 2>&1 | FileCheck %s --check-prefix=OUTCOME
// RUN: not sharding-opt %s --parallelize="mesh=tp=2" --report-file=%t.none/report.json -o %t.no.mlir 2>&1 | FileCheck %s --check-prefix=FILE
// RUN: not ls %t.no.mlir
// The report on a program is that on its schedule, once it is scheduled and before.
// RUN: sharding-opt %s --parallelize="mesh=tp=2 sequence-parallel=off" --schedule --report-file=%t.planned.json -o /dev/null
// RUN: %python -c "import json, sys; a, b = (json.load(open(f)) for f in sys.argv[1:]); assert a == b and a['communication']['run_seconds'] > 0" %t.json %t.planned.json
// RUN: %python -c "import subprocess as s, sys; sys.exit(s.run(['sharding-opt', '--no-such-flag']).returncode != 2)"

// REMARK: report-file.mlir:[[#]]:{{[0-9]+}}: remark: [annotate-tensor-parallel] applied: column-parallel over "tp"
// JSON: "kind": "all_reduce"
// JSON: "pass": "annotate-tensor-parallel"
// JSON-NEXT: "outcome": "applied"
// IR: dist.all_reduce sum
// TEXT: all_reduce tp 1 192 B 192 B f32
// NONE-NOT: applied
// OUTCOME: for the --remarks option: expected applied, declined or note, got 'refused'
// FILE: error: cannot write report
func.func @main(%x: tensor<6x8xf32> {nn.input = "x"}, %u: tensor<32x8xf32> {nn.parameter = "up"},
                %d: tensor<8x32xf32> {nn.parameter = "down"}) -> (tensor<6x8xf32> {nn.output = "y"}) {
  %0 = nn.linear %x, %u : (tensor<6x8xf32>, tensor<32x8xf32>) -> tensor<6x32xf32>
  %1 = nn.relu %0 : tensor<6x32xf32>
  %2 = nn.linear %1, %d : (tensor<6x32xf32>, tensor<8x32xf32>) -> tensor<6x8xf32>
  return %2 : tensor<6x8xf32>
}
