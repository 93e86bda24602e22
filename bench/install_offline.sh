#!/usr/bin/env bash
# Installs this tree on a GPU host that has torch and a compiler but no network, with what `make carry` brought along.
# The Python may lie in an environment without pip: then the pip outside of it is told where to go.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(command -v python3)
pip=("$python" -m pip)
"$python" -c "import pip" 2>/dev/null || pip=(pip --python "$python")
install=("${pip[@]}" install --quiet --disable-pip-version-check --no-index --no-deps)
"${install[@]}" carry/*.whl
"${install[@]}" --no-build-isolation .
"$python" -c "import everstep, torch; print('everstep', everstep.__version__, 'on', torch.cuda.get_device_name() if torch.cuda.is_available() else 'no GPU')"
