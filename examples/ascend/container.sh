#!/usr/bin/env bash
# Start vllm-ascend's image with everything that a training run needs of the host, after looking whether it is there.
#   examples/ascend/container.sh                          # all cards, a shell in the image
#   examples/ascend/container.sh --cards 0,1 --print      # only show the command
#   examples/ascend/container.sh --engine podman --mount /data/models:/data/models
# docs/ascend.md says what each device and mount is for. Written from the vendor's installation page; not yet run on a card.
set -euo pipefail

VERSION=v0.23.0.post1 # vllm-ascend's release; the row that belongs to it: docs/ascend.md
REPOSITORY=quay.io/ascend/vllm-ascend
ROOT=${CONTAINER_ROOT:-} # another root to look in, for tests
HERE=$(cd "$(dirname "$0")/../.." && pwd) # the repository, which the container sees as /workspace/ascent

engine=docker cards=all chip=auto image='' shm=64g network='' print=no name=ascent
mounts=() command=(bash)

usage() {
    cat <<'TEXT'
usage: container.sh [options] [-- COMMAND...]
  --cards LIST       0,1,... as in /dev/davinciN, or all (default)
  --engine NAME      docker (default) or podman
  --chip NAME        a2, a3, or auto (default): asks npu-smi
  --image IMAGE      another image, instead of the one for the chip
  --mount HOST:PATH  one more folder, such as a folder with models; may be given several times
  --shm SIZE         size of /dev/shm (default 64g; used only as far as it is filled)
  --network host     share the host's network: needed for several machines only
  --name NAME        of the container (default ascent)
  --print            show the command, don't run it
TEXT
}

fail() {
    printf 'container.sh: %s\n' "$@" >&2
    exit 2
}

value() { # an option that lost its value
    [ $# -ge 2 ] || fail "$1 needs a value (container.sh --help)"
}

while [ $# -gt 0 ]; do
    case $1 in
    --cards | --engine | --chip | --image | --mount | --shm | --network | --name)
        value "$@"
        case $1 in
        --mount) mounts+=("$2") ;;
        *) printf -v "${1#--}" '%s' "$2" ;;
        esac
        shift 2
        ;;
    --print) print=yes && shift ;;
    -h | --help) usage && exit 0 ;;
    --) shift && command=("$@") && break ;;
    *) usage >&2 && fail "unknown option $1" ;;
    esac
done

there() { # a path of the host, below the root that is looked in
    [ -e "$ROOT$1" ]
}

filled() { # a folder with something in it: docker makes empty ones for mounts whose source is missing
    [ -d "$ROOT$1" ] && [ -n "$(ls -A "$ROOT$1")" ]
}

case $engine in
docker | podman) ;;
*) fail "--engine $engine: expected docker or podman" ;;
esac
[ "$print" = yes ] || command -v "$engine" >/dev/null || fail "$engine isn't installed"

# The cards.
if [ "$cards" = all ]; then
    nodes=()
    for node in "$ROOT"/dev/davinci[0-9]*; do
        [ ! -e "$node" ] || nodes+=("${node#"$ROOT"}")
    done
    [ ${#nodes[@]} -gt 0 ] || fail \
        "there is no /dev/davinciN: this machine has no Ascend card, or its driver isn't loaded" \
        "npu-smi info must list the cards on the host first (driver and firmware: the vendor's HDK)"
else
    [[ $cards =~ ^[0-9]+(,[0-9]+)*$ ]] || fail "--cards $cards: expected numbers with commas, such as 0,1"
    IFS=, read -ra numbers <<<"$cards"
    nodes=("${numbers[@]/#//dev/davinci}")
fi
for node in "${nodes[@]}" /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc; do
    there "$node" || fail "$node isn't there: ls /dev/davinci* shows the cards, ascent doctor says more"
done

# What the driver has on the host.
driver=/usr/local/Ascend/driver
for folder in "$driver/lib64" /usr/local/dcmi; do
    filled "$folder" || fail "$folder is missing or empty: install the driver (HDK) on the host"
done
for file in "$driver/version.info" /etc/ascend_install.info /usr/local/bin/npu-smi; do
    [ -f "$ROOT$file" ] || fail "$file isn't there or isn't a file: install the driver (HDK) on the host"
done

if [ -z "$image" ]; then
    if [ "$chip" = auto ]; then
        table=$("$ROOT/usr/local/bin/npu-smi" info 2>&1) || fail "npu-smi info fails on the host:" "${table:0:300}"
        case $table in
        *910B[1-4]*) chip=a2 ;;
        *Ascend910*) chip=a3 ;;
        *) fail "npu-smi names neither an A2 (910B1 to 910B4) nor an A3 (Ascend910): give --chip or --image" ;;
        esac
    fi
    case $chip in
    a2) image=$REPOSITORY:$VERSION ;;
    a3) image=$REPOSITORY:$VERSION-a3 ;;
    *) fail "--chip $chip: expected a2, a3 or auto" ;;
    esac
fi

terminal=-it
[ "$print" = yes ] || [ -t 0 ] || terminal=-i
run=("$engine" run --rm "$terminal" --name "$name" --shm-size "$shm" --ulimit nofile=65536:65536)
for node in "${nodes[@]}" /dev/davinci_manager /dev/devmm_svm /dev/hisi_hdc; do
    run+=(--device "$node")
done
for path in /usr/local/dcmi /usr/local/bin/npu-smi "$driver/lib64" "$driver/version.info" /etc/ascend_install.info; do
    run+=(-v "$path:$path:ro")
done
# The NPUs' own network addresses and the tool that shows them: for several machines.
for path in /etc/hccn.conf "$driver/tools/hccn_tool"; do
    ! there "$path" || run+=(-v "$path:$path:ro")
done
run+=(-v "$HOME/.cache:/root/.cache" -v "$HERE:/workspace/ascent" -w /workspace/ascent)
for mount in "${mounts[@]}"; do
    [[ $mount == *:* ]] || fail "--mount $mount: expected HOST:PATH"
    there "${mount%%:*}" || fail "--mount $mount: ${mount%%:*} isn't there"
    run+=(-v "$mount")
done
[ -z "$network" ] || run+=(--network "$network")
if [ "$engine" = podman ]; then
    # Rootless: keep the group that owns the device files; SELinux must not relabel the driver's folders.
    run+=(--group-add keep-groups --security-opt label=disable)
fi
run+=("$image" "${command[@]}")

printf '%q ' "${run[@]}"
printf '\n'
[ "$print" = yes ] && exit
mkdir -p "$HOME/.cache"
exec "${run[@]}"
