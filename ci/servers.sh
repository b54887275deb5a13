#!/usr/bin/env bash
# Remote stores against real servers on the loopback, which the tests start and stop: s3s-fs (an S3 server in Rust), moto (one in Python, which also
# answers as Google's XML interface does), Azurite (Azure's own, for tests) and nginx (a web server, with limits); each alone, and behind a proxy of ours that delays, cuts, refuses and hangs, by fixed seeds.
#
# What is missing is installed below the target folder, without root: s3s-fs by cargo (some five minutes of CPU time), moto by pip into a venv, Azurite by npm, nginx
# from Debian's package, unpacked and not configured. It explores: it is no part of the gate.
. "$(dirname "$0")/lib.sh"

version=0.14.1
moto=5.2.5
azurite=3.35.0
tools=$(realpath -m "${CARGO_TARGET_DIR:-target}/tools")
left_out=()

server=$tools/bin/s3s-fs
if [[ $("$server" --version 2>/dev/null) != "s3s-fs $version" ]]; then
    CARGO_PROFILE_DEV_DEBUG=0 run env -u CARGO_TARGET_DIR cargo install s3s-fs --version "$version" --features binary --locked --debug --root "$tools" ||
        { skip "s3s-fs could not be installed"; left_out+=(--skip s3::a_ --skip s3::an_ --skip s3s_fs); }
fi
export PINFEED_S3S_FS=$server

export PINFEED_MOTO=$tools/moto/bin/moto_server
if ! "$tools/moto/bin/pip" show moto 2>/dev/null | grep -q "^Version: $moto$"; then
    { run python3 -m venv "$tools/moto" && run "$tools/moto/bin/pip" install --quiet "moto[server,s3]==$moto"; } ||
        { skip "moto could not be installed"; left_out+=(--skip several::moto); }
fi

export PINFEED_AZURITE=$tools/azurite
if [[ $("$PINFEED_AZURITE/node_modules/.bin/azurite-blob" --version 2>/dev/null) != "$azurite" ]]; then
    mkdir -p "$PINFEED_AZURITE"
    (cd "$PINFEED_AZURITE" && run npm install --silent --no-fund --no-audit "azurite@$azurite" @azure/storage-blob@12.32.0) ||
        { skip "Azurite could not be installed"; left_out+=(--skip several::azurite); }
fi

if ! PINFEED_NGINX=$(command -v nginx); then
    PINFEED_NGINX=$tools/nginx/usr/sbin/nginx
    if [[ ! -x $PINFEED_NGINX ]]; then
        mkdir -p "$tools/nginx"
        (cd "$tools/nginx" && run apt-get download nginx && run dpkg -x nginx_*.deb .) || rm -rf "$tools/nginx"
    fi
    "$PINFEED_NGINX" -v 2>/dev/null || { skip "nginx could not be installed"; left_out+=(--skip nginx --skip a_server_with_few --skip what_a_web_server); }
fi
export PINFEED_NGINX

run cargo test --features object-store --test remote -- --include-ignored "${left_out[@]}"
note "s3s-fs $version, moto $moto, Azurite $azurite, $("$PINFEED_NGINX" -v 2>&1 || echo "no nginx")"
