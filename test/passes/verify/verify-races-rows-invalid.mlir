// Numbers of rows that travel have the rules of the rows: they are operands and results of the start.
// RUN: sharding-opt %s --verify-placement -split-input-file -verify-diagnostics -o %t

!x = tensor<4x1x8xf32>
!y = tensor<8x1x8xf32>
!o = tensor<3xi64>
!i = tensor<2xi64>
func.func @offsets_in_flight(%x: !x, %o: !o) attributes {rt.arena = 576 : i64} {
  // expected-note@+1 {{the value is from here}}
  %0 = rt.kernel %o at [0] : (!o) -> !o {
  ^bb0(%a: !o):
    %3 = nn.neg %a : !o
    rt.yield %3 : !o
  }
  // expected-note@+1 {{a collective in flight reads it}}
  %f = rt.start %x, %0 stream 1 at [64, 320, 384] : (!x, !o) -> !rt.future<!y, !o, !i> {
  ^bb0(%a: !x, %b: !o):
    %3:3 = nn.send_rows %a, %b axes [#dist.axis_ref<"ep">] : (!x, !o) -> (!y, !o, !i)
    rt.yield %3#0, %3#1, %3#2 : !y, !o, !i
  }
  // expected-error@+1 {{writes result 0 to 0 .. 24, over a value that is needed later}}
  %1 = rt.kernel %o at [0] : (!o) -> !o {
  ^bb0(%a: !o):
    %3 = nn.neg %a : !o
    rt.yield %3 : !o
  }
  %2:3 = rt.wait %f : !rt.future<!y, !o, !i>
  return
}

// -----

!x = tensor<4x1x8xf32>
!y = tensor<8x1x8xf32>
!o = tensor<3xi64>
!i = tensor<2xi64>
func.func @parts_in_flight(%x: !x, %o: !o) attributes {rt.arena = 576 : i64} {
  // expected-note@+1 {{it starts here}}
  %f = rt.start %x, %o stream 1 at [64, 320, 384] : (!x, !o) -> !rt.future<!y, !o, !i> {
  ^bb0(%a: !x, %b: !o):
    %3:3 = nn.send_rows %a, %b axes [#dist.axis_ref<"ep">] : (!x, !o) -> (!y, !o, !i)
    rt.yield %3#0, %3#1, %3#2 : !y, !o, !i
  }
  // expected-error@+1 {{writes result 0 to 320 .. 344, where a collective in flight writes}}
  %1 = rt.kernel %o at [320] : (!o) -> !o {
  ^bb0(%a: !o):
    %3 = nn.neg %a : !o
    rt.yield %3 : !o
  }
  %2:3 = rt.wait %f : !rt.future<!y, !o, !i>
  return
}

// -----

// Rows do not travel in a kernel.

!x = tensor<4x1x8xf32>
!y = tensor<8x1x8xf32>
!o = tensor<3xi64>
!i = tensor<2xi64>
func.func @in_a_kernel(%x: !x, %o: !o) {
  // expected-note@+1 {{the kernel}}
  %0:3 = rt.kernel %x, %o : (!x, !o) -> (!y, !o, !i) {
  ^bb0(%a: !x, %b: !o):
    // expected-error@+1 {{is in a kernel: expected it in an rt.start}}
    %3:3 = nn.send_rows %a, %b axes [#dist.axis_ref<"ep">] : (!x, !o) -> (!y, !o, !i)
    rt.yield %3#0, %3#1, %3#2 : !y, !o, !i
  }
  return
}
