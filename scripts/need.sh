# Functions for the setup scripts: messages, and system packages.
say() { echo "$(basename "$0"): $*"; }

# need WHY PACKAGE...: install the packages as root with apt-get, else print how to.
need() {
    local why=$1
    shift
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        say "$*, with apt-get"
        apt-get install -qq --yes "$@" >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq --yes "$@" >/dev/null; } || say "that did not install; without it $why"
    else
        say "install $*, e.g. apt-get install $*; without it $why"
    fi
}
