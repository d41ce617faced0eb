//===- ParallelizeOptionList.cpp - the list of the options of a plan ------===//
//
// Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
//===----------------------------------------------------------------------===//

#include "meshwright/lib/Support/ParallelizeOptions.h"

#include "llvm/ADT/STLExtras.h"

using namespace meshwright;

static constexpr OptionDescription meshDescription = {
    "mesh", "name=size[,name=size...] | stage:name=size,...;stage:... | auto",
    "the mesh, axes major to minor, or one for each stage of a composed program; the IR's own "
    "dist.mesh where absent; auto: the planner chooses one of 'ranks' ranks, or of as many as the "
    "IR's own has", ""};

/// The options of the planner.
static constexpr OptionDescription plannerDescriptions[] = {
    {"ranks", "number",
     "the planner chooses a mesh of so many ranks, and each option that is auto, by the times and the "
     "memory of finished plans", ""},
    {"objective", "time | memory | time-then-memory",
     "the aim of the planner: the least time under the memory ceiling or the memory of the device, the "
     "least memory, or the least memory of plans within 5 % of the least time; with a mesh the planner "
     "chooses the options alone", ""},
};

/// The options behind those of kAxisRoles.
static constexpr OptionDescription otherDescriptions[] = {
    {"sequence-parallel", "on | off | auto",
     "shards the residual stream by token along the tensor-parallel axis"},
    {"cache-sharding", "heads | sequence | auto",
     "for a model that serves: each tensor-parallel rank of a group holds the pages of its key/value "
     "heads, or every n-th page of each request; auto: by heads, and of Python's models as costs less"},
    {"data-parallel-attention", "groups | auto",
     "the tensor-parallel ranks form so many groups, and attention computes other rows of the batch, or "
     "other requests, in each; auto: as many as keep ranks from holding equal key/value heads", "1"},
    {"dense-tp", "1 | ranks | auto",
     "with data-parallel-attention: the ranks that share a dense layer, of their own tokens alone (1) or "
     "of all groups (all tensor-parallel ranks); auto: all"},
    {"dp-lm-head", "on | off | auto",
     "with data-parallel-attention: a group computes the logits of its own tokens; off: all ranks compute "
     "those of all tokens; auto: by cost"},
    {"token-gather", "max | sum | auto",
     "with data-parallel-attention, of a program that serves: the tokens of all groups meet with each group "
     "padded to its capacity, or compacted to the capacity of their sum; auto: the cheaper one, step by step"},
    {"context-parallel",
     "auto | \"ulysses=axis | none | auto ring=axis | none | auto "
     "order=contiguous | zigzag | striped | auto\"",
     "shards the sequence over both axes; attention moves heads along one, keys along the other", ""},
    {"fold", "{stage: sp | ulysses | ring | replica | batch | auto | none, ...}",
     "shards a stage of a composed program over the axes of context-parallel", ""},
    {"shardings", "{\"pattern\": [{\"axis\"}, {}], ...}",
     "shardings of parameters by name; the first pattern that matches wins", ""},
    {"device", "h100 | h200 | a100 | a800 | cpu | FILE.json | {preset key=number ...} | auto",
     "the device that the cost model assumes; auto: MESHWRIGHT_DEVICE, or the calibration of this machine, "
     "or cpu for a target that is given as a "
     "processor, or h100", "auto"},
    {"overlap", "on | off | auto",
     "runs collectives beside kernels, in chunks of their rows; auto: where it pays by the cost "
     "model"},
    {"shard-optimizer", "on | off | auto",
     "of a model that trains: shards the optimizer's averages over ranks that hold equal "
     "parameters; auto: where it pays by the cost model"},
    {"gtp-align", "rows | auto",
     "with gtp: a shard of a weight has a multiple of so many rows; auto: 32 for mxfp8, 16 "
     "for nvfp4 and of bf16 and f16 weights, else 1"},
    {"gtp-prefetch", "number | auto",
     "with gtp: the most weights that are gathered before the one in use; 0: each gather waits"},
    {"gtp-keep", "on | off | auto",
     "with gtp: keeps gathered weights from the forward to the backward pass; auto: under a memory "
     "ceiling, where that fits and saves time"},
    {"gtp-reduce", "plain | bf16",
     "with gtp: the type in which gradients travel to the ranks that store them: as they leave "
     "products, or rounded to bf16 and summed in f32", "plain"},
    {"gtp-gather", "plain | mxfp8 | nvfp4 | {\"pattern\": plain | mxfp8 | nvfp4, ...}",
     "with gtp: the form in which weights travel that only products read; by their names, of which "
     "the first pattern that matches wins", "plain"},
    {"shard-saved", "on | off | auto",
     "of a model that trains: keeps values that several ranks hold alike in shards for the "
     "backward pass; auto: where a memory ceiling asks for it"},
    {"recompute", "none | full | auto",
     "of a model that trains: which values of the forward pass the backward pass computes again; "
     "auto: as few as the memory ceiling allows"},
    {"memory-ceiling", "bytes[K|M|G]", "most memory a rank may use", ""},
    {"expert-capacity", "none | factor",
     "each expert takes at most so many times its even part of the choices, in the order of the tokens; "
     "the rest is dropped, and counted in reports of runs", "none"},
    {"expert-load", "factor",
     "the load of the fullest rank that costs and bytes assume, as a multiple of the even load", "1"},
    {"stored-weights", "keep | widen",
     "the form in which ranks hold weights of 8 or 4 bits: as they are stored, or widened to the "
     "model's type at load", "keep"},
    {"reduce-type", "own | f32 | {\"pattern\": own | f32, ...}",
     "the type in which partial sums of values leave products and travel: the program's, or f32, "
     "which rounds once; by the names of modules, of which the first pattern that matches wins", "own"},
    {"target", "cpu | cpu:NAME",
     "the processor to schedule and compile for, by LLVM's name; this machine's by default", "cpu"},
};

llvm::ArrayRef<OptionDescription> meshwright::getParallelizeOptionDescriptions() {
  static const std::vector<OptionDescription> all = [] {
    std::vector<OptionDescription> list{meshDescription};
    llvm::append_range(list, plannerDescriptions);
    for (const AxisRoleDescription &role : kAxisRoles)
      if (!role.option.empty())
        list.push_back({role.option, role.values, role.help});
    llvm::append_range(list, otherDescriptions);
    return list;
  }();
  return all;
}

llvm::ArrayRef<llvm::StringRef> meshwright::getPlannedOptions() {
  static constexpr llvm::StringRef names[] = {
      "sequence-parallel", "overlap",         "shard-optimizer",         "gtp-keep", "recompute", "shard-saved",
      "context-parallel",  "expert-parallel", "data-parallel-attention", "dense-tp", "dp-lm-head"};
  return names;
}
