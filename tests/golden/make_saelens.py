"""Write saelens.safetensors: folders that assay saved, and what SAELens makes of them.

    python -m venv /tmp/peers && /tmp/peers/bin/pip install sae-lens==6.18.0
    PYTHONPATH=src /tmp/peers/bin/python tests/golden/make_saelens.py

For each kind of coder: its folder's tensors and cfg.json, and SAELens's codes and reconstructions of the same rows.
"""

import json
import sys
import tempfile
from pathlib import Path

import sae_lens
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parent.parent / "studies" / "sae"))
from saelens_coders import WORDS, coder, decoder, rows


def main() -> None:
    from assay.studies.sae.saelens import CONFIG, WEIGHTS, save_saelens

    tensors, configs = {"x": rows()}, {}
    for number, word in enumerate(WORDS):
        with tempfile.TemporaryDirectory() as folder:
            save_saelens(coder(word), folder, decoder=decoder())
            peer = sae_lens.SAE.load_from_disk(folder)
            codes = peer.encode(rows())
            saved = load_file(Path(folder) / WEIGHTS)
            configs[word] = json.loads((Path(folder) / CONFIG).read_text())
        found = {**saved, "codes": codes, "recon": peer.decode(codes)}
        tensors |= {f"{number}.{name}": value.detach().float().contiguous().clone() for name, value in found.items()}
    target = Path(__file__).with_name("saelens.safetensors")
    about = {"peer": f"sae-lens {sae_lens.__version__}", "torch": torch.__version__, "configs": json.dumps(configs)}
    save_file(tensors, target, about)


if __name__ == "__main__":
    main()
