# Part of Meshwright, under the Apache License v2.0 with LLVM Exceptions.
# SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
"""Modules whose weights come from a checkpoint as it is released."""
import numpy as np
import pytest
import torch
import torch.nn as nn
from released import E8M0, entries, in_fp8, in_mxfp4, model, to_blocks, truth, write
from safetensors.torch import load_file, save_file

import meshwright as mw


def run(name, folder, mesh, **options):
    """The model with weights of a folder: the plan, its output, the ids."""
    ids = torch.randint(0, 100, (2, 7))
    plan = mw.from_torch(model(name), (ids,), weights=folder).parallelize(mesh=mesh, **options)
    return plan, plan.run(ids)[0], ids


def assert_equal(got, want, tolerance=2e-6):
    assert (got.double() - want.double()).abs().max() <= tolerance * want.abs().max()


def weights_of(plan):
    return plan.report(format="json")["memory_per_rank"]["weights"]


PLAIN = [
    ("llama", dict(tp=2), 1),
    ("llama, tied", dict(tp=2), 3),
    ("gemma2", dict(dp=2), 2),
    ("mixtral", dict(tp=2, ep=2), 5),
    ("qwen3_moe", dict(ep=4), 4),
    ("deepseek_v3", dict(ep=2), 3),
    ("granitemoe", dict(ep=2), 2),
    ("gpt_oss", dict(tp=2), 2),
]


@pytest.mark.parametrize("name,mesh,files", PLAIN, ids=[name for name, *_ in PLAIN])
def test_entries(tmp_path, name, mesh, files):
    """Under the names of releases, in several files: equal to what transformers loads."""
    stored = entries(name, tmp_path)
    write(tmp_path, stored, files)
    _, got, ids = run(name, tmp_path, mesh)
    assert_equal(got, truth(name, tmp_path / "truth", stored)(ids).logits)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_stored_in_another_type(tmp_path, name):
    """bf16 in files of a model in f32 takes no more than it does in the files, and is exact."""
    stored = entries(name, tmp_path, torch.bfloat16)
    write(tmp_path, stored)
    plan, got, ids = run(name, tmp_path, dict(dp=2))
    assert_equal(got, truth(name, tmp_path / "truth", stored)(ids).logits)
    assert weights_of(plan) <= 1.1 * sum(w.nbytes for w in stored.values()) + 8192


def test_names_of_the_module(tmp_path):
    """A file in the module's names, of any module; its buffers, too. The module may have values."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.norm = nn.Linear(8, 6), nn.BatchNorm1d(6)
            self.register_buffer("which", torch.tensor([3, 1, 0]))

        def forward(self, x):
            return self.norm(self.lin(x))[:, self.which]

    net = Net().eval()
    net.norm.running_mean.normal_()
    net.norm.running_var.uniform_(1, 2)
    x = torch.randn(4, 8)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    with torch.device("meta"):
        meta = Net().eval()
    for module in (meta, Net().eval()):
        module_before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
        got = mw.from_torch(module, (x,), weights=tmp_path / "w.safetensors").parallelize(mesh=dict(dp=2)).run(x)[0]
        assert_equal(got, net(x))
        assert all(torch.equal(a, b) for a, b in zip(module.state_dict().values(), module_before.values(), strict=True)
                   if not a.is_meta)


class Listed(nn.Module):
    """Experts that a module keeps apart."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 6, bias=False) for _ in range(4))

    def forward(self, x):
        return torch.einsum("td,efd->tef", x, torch.stack([e.weight for e in self.experts]))


def test_experts_in_a_list(tmp_path):
    """Their entries become one parameter, too."""
    net, x = Listed(), torch.randn(5, 8)
    save_file({k: w.bfloat16() for k, w in net.state_dict().items()}, tmp_path / "w.safetensors")
    with torch.device("meta"):
        meta = Listed()
    imported = mw.from_torch(meta, (x,), weights=tmp_path / "w.safetensors")
    assert imported.parameters["experts.*.weight"].dtype == torch.bfloat16
    got = imported.parallelize(mesh=dict(tp=2), shardings={"experts.*": '[{"tp"}, {}, {}]'}).run(x)[0]
    assert_equal(got, net.bfloat16().float()(x))


def test_transposed_and_cut_entries(tmp_path):
    """A release that has gate and up in one entry where the module has two."""
    import transformers as tf
    from transformers import conversion_mapping as table
    from transformers.core_model_loading import Chunk, Transpose, WeightConverter

    kind = type("Cut", (tf.LlamaForCausalLM,), {})
    table.register_checkpoint_conversion_mapping("Cut", [
        WeightConverter("mlp.fused.weight", ["mlp.gate_proj.weight", "mlp.up_proj.weight"], [Chunk(dim=0)]),
        WeightConverter("mlp.turned", "mlp.down_proj.weight", [Transpose(0, 1)])], overwrite=True)
    stored = entries("llama", tmp_path)
    released = {}
    for key, w in stored.items():
        if "gate_proj" in key:
            released[key.replace("gate_proj", "fused")] = torch.cat([w, stored[key.replace("gate", "up")]])
        elif "down_proj" in key:
            released[key.replace("down_proj.weight", "turned")] = w.mT
        elif "up_proj" not in key:
            released[key] = w
    write(tmp_path, released)
    with torch.device("meta"):
        meta = kind(model("llama").config).eval()
    ids = torch.randint(0, 100, (2, 7))
    imported = mw.from_torch(meta, (ids,), weights=tmp_path)
    assert_equal(imported.parallelize(mesh=dict(tp=2)).run(ids)[0],
                 truth("llama", tmp_path / "truth", stored)(ids).logits)


def test_reads_its_part_alone(tmp_path):
    """Experts are not joined in memory: parameters are read in place, of the mapped files."""
    stored = entries("mixtral", tmp_path)
    write(tmp_path, stored, 2)
    ids = torch.randint(0, 100, (2, 7))
    imported = mw.from_torch(model("mixtral"), (ids,), weights=tmp_path)
    dense = imported._parameter("model.layers.0.mlp.experts.gate_up_proj")
    assert dense.address == 0 and len(dense.pieces) == 8
    assert [offsets for offsets, *_ in dense.pieces] == [[e, at, 0] for at in (0, 96) for e in range(4)]


def test_arguments_and_default_device_may_be_meta(tmp_path):
    write(tmp_path, entries("mixtral", tmp_path))
    ids = torch.randint(0, 100, (2, 7))
    want = mw.from_torch(model("mixtral"), (ids,), weights=tmp_path).parallelize(mesh=dict(ep=2)).run(ids)[0]
    with torch.device("meta"):
        imported = mw.from_torch(model("mixtral"), (ids.to("meta"),), weights=tmp_path)
    assert torch.equal(imported.parallelize(mesh=dict(ep=2)).run(ids)[0], want)


def test_bundle_has_the_parts(tmp_path):
    write(tmp_path, entries("mixtral", tmp_path), 2)
    plan, got, ids = run("mixtral", tmp_path, dict(tp=2, ep=2))
    plan.compile(tmp_path / "bundle")
    with mw.load_bundle(tmp_path / "bundle").start() as session:
        assert np.array_equal(session.run(ids.numpy())[0], got.numpy())


def test_two_entries_of_one_checkpoint(tmp_path):
    """They share what is mapped, and are compared by where it is."""
    write(tmp_path, entries("mixtral", tmp_path), 2)
    ids = {name: torch.randint(0, 100, (1, n)) for name, n in (("prefill", 7), ("decode", 1))}
    models = {name: mw.from_torch(model("mixtral"), (x,), weights=tmp_path) for name, x in ids.items()}
    places = [[m._parameter(name).place for name in m.parameters if "experts" in name] for m in models.values()]
    assert places[0] == places[1]
    plan = mw.join(models).parallelize(mesh=dict(ep=2))
    for name, x in ids.items():
        assert torch.equal(plan.run(x, entry=name)[0], models[name].parallelize(mesh=dict(ep=2)).run(x)[0])
    other = tmp_path / "other"
    other.mkdir()
    write(other, entries("mixtral", other))
    with pytest.raises(mw.Error, match="has other values than that of 'prefill': expected the same weights"):
        mw.join(models | {"decode": mw.from_torch(model("mixtral"), (ids["decode"],), weights=other)})


def test_is_saved_and_checked(tmp_path):
    """Model.save writes the program's parameters, and Model.check fills the module."""
    write(tmp_path, entries("mixtral", tmp_path), 2)
    ids = torch.randint(0, 100, (2, 7))
    imported = mw.from_torch(model("mixtral"), (ids,), weights=tmp_path)
    imported.check(ids)
    imported.save(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    again = mw.load(tmp_path / "m.mlir", tmp_path / "m.safetensors")
    assert np.array_equal(again.parallelize(mesh=dict(ep=2)).run(ids.numpy())[0],
                          imported.parallelize(mesh=dict(ep=2)).run(ids)[0].numpy())
    joined = load_file(tmp_path / "m.safetensors")["model.layers.1.mlp.experts.gate_up_proj"]
    assert torch.equal(joined, imported.parameters["model.layers.1.mlp.experts.gate_up_proj"])


def test_trains(tmp_path):
    """A step from the weights of a checkpoint is PyTorch's."""
    stored = entries("llama", tmp_path)
    write(tmp_path, stored)
    ids = torch.randint(0, 100, (2, 7))
    imported = mw.from_torch(model("llama"), (), {"input_ids": ids, "labels": ids}, training=True, weights=tmp_path)
    plan = imported.train(mw.SGD(lr=0.1)).parallelize(mesh=dict(tp=2))
    net = truth("llama", tmp_path / "truth", stored)
    loss = net(input_ids=ids, labels=ids).loss
    loss.backward()
    with plan.start() as session:
        assert_equal(session.run(input_ids=ids, labels=ids)[0], loss.detach())
        after = session.parameters()
    for name, p in net.named_parameters():
        if name in after:
            assert_equal(torch.as_tensor(after[name]), p.detach() - 0.1 * p.grad, 1e-5)


def test_one_remark_for_what_the_module_lacks(tmp_path):
    stored = entries("deepseek_v3", tmp_path)
    more = {k.replace(".2.", ".3."): w.clone() for k, w in stored.items() if k.startswith("model.layers.2.")}
    write(tmp_path, stored | more | {"mtp.norm.weight": torch.ones(3)}, 2)
    plan, *_ = run("deepseek_v3", tmp_path, dict(ep=2))
    (said,) = [d["message"] for d in plan.report(format="json")["decisions"] if "model.layers.3." in d["message"]]
    assert f"have {len(more) + 1} tensors that the module lacks, which are ignored: model.layers.3." in said


# Codes.

FP8 = [
    ("deepseek_v3", dict(ep=2), (16, 16), torch.float32, {}),
    ("deepseek_v3", dict(dp=2, tp=2), (128, 128), torch.float32, dict(expert_parallel=["dp", "tp"], sequence_parallel="on")),
    ("qwen3_moe", dict(ep=4), (16, 16), torch.bfloat16, {}),
    ("mixtral", dict(tp=2, ep=2), (32, 16), E8M0, {}),
    ("llama", dict(tp=3), (20, 24), torch.uint8, {}),
]


@pytest.mark.parametrize("name,mesh,block,scale,options", FP8, ids=[f"{n}-{b[0]}" for n, _, b, *_ in FP8])
def test_fp8(tmp_path, name, mesh, block, scale, options):
    """Scales of all types, blocks that the ends of weights and of experts cut."""
    stored, counts = in_fp8(entries(name, tmp_path), block, scale)
    write(tmp_path, stored, 3, {"quantization_config": {"quant_method": "fp8", "weight_block_size": block}})
    _, got, ids = run(name, tmp_path, mesh, **options)
    assert_equal(got, truth(name, tmp_path / "truth", counts)(ids).logits, 1e-5)


@pytest.mark.parametrize("mesh", [dict(ep=4), dict(tp=2)], ids=["ep=4", "tp=2"])
def test_mxfp4(tmp_path, mesh):
    stored, counts = in_mxfp4(entries("gpt_oss", tmp_path))
    write(tmp_path, stored, 2, {"quantization_config": {"quant_method": "mxfp4"}})
    _, got, ids = run("gpt_oss", tmp_path, mesh)
    assert_equal(got, truth("gpt_oss", tmp_path / "truth", counts)(ids).logits, 1e-5)


def test_codes_stay_as_they_are_stored(tmp_path):
    stored, _ = in_fp8(entries("deepseek_v3", tmp_path), (16, 16))
    write(tmp_path, stored, 1, {"quantization_config": {"weight_block_size": [16, 16]}})
    plan, *_ = run("deepseek_v3", tmp_path, dict(dp=2))
    assert weights_of(plan) <= 1.2 * sum(w.nbytes for w in stored.values())


def test_one_scale_for_a_tensor(tmp_path):
    stored, counts = dict(entries("llama", tmp_path)), {}
    for key, w in list(stored.items()):
        counts[key] = w
        if "_proj" in key:
            stored[key] = (w / 2 ** -10).to(torch.float8_e4m3fn)
            stored[key + "_scale_inv"] = torch.tensor(2.0 ** -10)
            counts[key] = stored[key].float() * 2 ** -10
    write(tmp_path, stored)
    _, got, ids = run("llama", tmp_path, dict(tp=2))
    assert_equal(got, truth("llama", tmp_path / "truth", counts)(ids).logits, 1e-5)


def test_codes_of_experts_in_a_list(tmp_path):
    net, x, stored = Listed(), torch.randn(5, 8), {}
    for name, p in net.named_parameters():
        stored[name], stored[name + "_scale_inv"], p.data = to_blocks(p.detach(), (4, 8))
    save_file(stored, tmp_path / "w.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"weight_block_size": [4, 8]}}')
    with torch.device("meta"):
        meta = Listed()
    imported = mw.from_torch(meta, (x,), weights=tmp_path / "w.safetensors")
    assert {name: (p.dtype, p.shape) for name, p in imported.parameters.items()} == {
        "experts.*.weight": (torch.float8_e4m3fn, (4, 6, 8)),
        "experts.*.weight_scale_inv": (torch.float32, (4, 2, 1))}
    assert_equal(imported.parallelize(mesh=dict(dp=2)).run(x)[0], net(x).detach())


def test_codes_are_checked(tmp_path):
    """Model.check brings codes back by itself."""
    for name, stored, config in (
            ("qwen3_moe", in_fp8(entries("qwen3_moe", tmp_path), (16, 16))[0], {"weight_block_size": [16, 16]}),
            ("gpt_oss", in_mxfp4(entries("gpt_oss", tmp_path))[0], {})):
        write(tmp_path, stored, 1, {"quantization_config": config})
        ids = torch.randint(0, 100, (2, 7))
        mw.from_torch(model(name), (ids,), weights=tmp_path).check(ids)
