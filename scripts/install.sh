#!/usr/bin/env bash
# Installs the server into a virtual environment of its own: what the Dockerfile, make and the tests run.
#
#   scripts/install.sh FORM PREFIX [STEP...]
#
# FORM    cpu; gpu (NVIDIA, CUDA 13, Linux on x86-64); gpu-torch (the same with PyTorch, for models of its backends);
#         dev, gpu-dev (what tests and benchmarks need on top of cpu and of gpu-torch)
# PREFIX  the environment, made where it is not there, with the Python that the variable PYTHON names (python3 unless told)
# STEP    dependencies: what the form's lock says, each file checked against its hash
#         packages: this repository's two packages; editable: the same as links to the working tree
#         check: try what is there, without a GPU
#         Without a STEP: dependencies, packages, check.
set -euo pipefail

fail() { echo "install.sh: $*" >&2; exit 1; }

[ $# -ge 2 ] || fail "usage: install.sh cpu|gpu|gpu-torch|dev|gpu-dev PREFIX [dependencies|packages|editable|check]..."
form=$1 prefix=$2
shift 2
[ $# -gt 0 ] || set -- dependencies packages check
source=$(cd "$(dirname "$0")/.." && pwd)

case $form in
  cpu) lock=server checked=cpu ;;
  dev) lock=dev checked=cpu ;;
  gpu | gpu-torch) lock=$form checked=$form ;;
  gpu-dev) lock=gpu-dev checked=gpu-torch ;;
  *) fail "no form $form: there are cpu, gpu, gpu-torch, dev and gpu-dev" ;;
esac
foreign=onnxruntime-gpu
if [ $checked != cpu ]; then
  foreign=onnxruntime
  [ "$(uname -sm)" = "Linux x86_64" ] || fail "the form $form is for Linux x86_64, this is $(uname -sm)"
fi

if [ ! -x "$prefix/bin/python" ]; then
  "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' ||
    fail "Python 3.11 or 3.12 is needed, ${PYTHON:-python3} is $("${PYTHON:-python3}" --version): set PYTHON"
  "${PYTHON:-python3}" -m venv "$prefix"
fi
python=$prefix/bin/python
pip() { "$python" -m pip --disable-pip-version-check "$@"; }

# ONNX Runtime for CPU and GPU are one module out of two distributions: the later one writes over the earlier one's files, and
# removing either breaks both. pip does not know, so it is refused here.
pip show --quiet "$foreign" 2>/dev/null &&
  fail "$prefix has $foreign, which cannot be together with what the form $form installs: take another PREFIX"

for step; do
  case $step in
    dependencies) pip install --quiet --require-hashes -r "$source/requirements/$lock.lock" ;;
    packages) pip install --quiet --no-deps --no-build-isolation "$source/clients/python" "$source" ;;
    editable) pip install --quiet --no-deps --no-build-isolation -e "$source/clients/python" -e "$source" ;;
    check)
      said=$(pip check) || fail "$said"
      "$python" -P "$source/scripts/check_install.py" $checked
      ;;
    *) fail "no step $step: there are dependencies, packages, editable and check" ;;
  esac
done
