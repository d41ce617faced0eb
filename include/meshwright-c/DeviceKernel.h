/*===- DeviceKernel.h - kernels with code of their own ----------*- C -*-===*\
|*                                                                        *|
|* Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions. *|
|* SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception                 *|
|*                                                                        *|
\*===--------------------------------------------------------------------===*/

#ifndef MESHWRIGHT_C_DEVICEKERNEL_H
#define MESHWRIGHT_C_DEVICEKERNEL_H

#include <stdint.h>

/* How copies of the GPU's tensor memory accelerator read a buffer: as `matrices` matrices of `rows`
 * rows of `columns` elements of 16 bits, row-major, of which each begins `matrix_rows` rows behind the
 * one before. A copy takes `box_rows` rows of `box_columns` columns, with zeros beyond a matrix, and
 * swizzles them by 128 bytes. */
typedef struct mw_rt_tensor_map {
  /* The buffer, a number among inputs and outputs. Its address is a multiple of 16. */
  int64_t buffer;
  int64_t dtype;
  int64_t columns, rows, matrix_rows, matrices;
  int64_t box_columns, box_rows;
} mw_rt_tensor_map;

/* The bytes at the begin of scratch memory that count blocks. They are zeros before a launch and
 * after it. */
#define MW_RT_COUNTER_BYTES 4096

/* Set in a fault word, beside the position: the index is in range, but the result has no room for
 * its row (`nn.route`). */
#define MW_RT_NO_ROOM (1ll << 62)

/* A kernel of a device with code of its own: `mw_rt_run_kernel` is passed the address of this record
 * in place of a function. The program's description has the code of that name. The kernel's
 * parameters are the addresses of its buffers, the address of a fault word if `checks_indices` is
 * set, the address of scratch memory if it needs some, which later launches overwrite, and the tensor
 * maps, each of 128 bytes, by value. */
typedef struct mw_rt_device_kernel {
  const char *name;
  int64_t checks_indices;
  int64_t scratch_bytes;
  int64_t num_tensor_maps;
  const mw_rt_tensor_map *tensor_maps;
} mw_rt_device_kernel;

#endif /* MESHWRIGHT_C_DEVICEKERNEL_H */
