{{/*
kustomize, as far as configs/kubernetes uses it: resources, components, JSON patches, generated ConfigMaps under their
digest, images. tests/helm compares the result with kustomize's, for every mode.

A template returns text alone. So these change the dict `state` instead: `objects` is the list of what was built,
`files` are the chart's, `documents` replace the content of generated ConfigMaps (by name), `chosen` are the components
that values add, and `image` is the image's name and tag.
*/}}

{{/* Adds what the kustomization of a folder says. Arguments: state, folder. */}}
{{- define "netmgr.kustomization" -}}
{{- $state := .state -}}
{{- $folder := .folder -}}
{{- $kustomization := $state.files.Get (printf "%s/kustomization.yaml" $folder) | fromYaml -}}
{{- range $kustomization.resources -}}
  {{- $path := clean (printf "%s/%s" $folder .) -}}
  {{- if hasSuffix ".yaml" $path -}}
    {{- range splitList "\n---\n" ($state.files.Get $path) -}}
      {{- include "netmgr.add" (dict "state" $state "object" (fromYaml .)) -}}
    {{- end -}}
  {{- else -}}
    {{- include "netmgr.kustomization" (dict "state" $state "folder" $path) -}}
  {{- end -}}
{{- end -}}
{{- range $kustomization.components -}}
  {{- include "netmgr.kustomization" (dict "state" $state "folder" (clean (printf "%s/%s" $folder .))) -}}
{{- end -}}
{{- range $generator := $kustomization.configMapGenerator -}}
  {{- $data := dict -}}
  {{- range .files -}}
    {{- $_ := set $data . (get $state.documents $generator.name | default ($state.files.Get (printf "%s/%s" $folder .))) -}}
  {{- end -}}
  {{- include "netmgr.configMap" (dict "state" $state "name" .name "namespace" .namespace "data" $data) -}}
{{- end -}}
{{- range $patch := $kustomization.patches -}}
  {{- $operations := $state.files.Get (printf "%s/%s" $folder .path) | fromYamlArray -}}
  {{- $found := false -}}
  {{- range $state.objects -}}
    {{- if and (eq .kind $patch.target.kind) (regexMatch (printf "^(%s)$" $patch.target.name) .metadata.name) -}}
      {{- $found = true -}}
      {{- include "netmgr.patch" (dict "object" . "operations" $operations "folder" $folder) -}}
    {{- end -}}
  {{- end -}}
  {{- if not $found -}}
    {{- /* kustomize says nothing then, and the option would have no effect. */ -}}
    {{- fail (printf "%s has nothing to change in this mode, which has no %s %s" $folder .target.kind .target.name) -}}
  {{- end -}}
{{- end -}}
{{- range $kustomization.images -}}
  {{- $_ := set $state "image" . -}}
{{- end -}}
{{- end -}}

{{- define "netmgr.add" -}}
{{- $_ := set .state "objects" (append .state.objects .object) -}}
{{- end -}}

{{/* Adds a ConfigMap under the digest of its content, and has pods use it. So they are replaced when it changes.
Arguments: state, name, namespace, data. */}}
{{- define "netmgr.configMap" -}}
{{- $generated := .name -}}
{{- $digest := dict "data" .data "kind" "ConfigMap" "name" "" | toJson | sha256sum | trunc 10 -}}
{{- $digest = $digest | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" -}}
{{- $name := printf "%s-%s" .name $digest -}}
{{- range .state.objects -}}
  {{- if has .kind (list "DaemonSet" "Deployment") -}}
    {{- range .spec.template.spec.volumes -}}
      {{- if eq (dig "configMap" "name" "" .) $generated }}{{ $_ := set .configMap "name" $name }}{{ end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $metadata := dict "name" $name "namespace" .namespace -}}
{{- $object := dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" $metadata "data" .data -}}
{{- include "netmgr.add" (dict "state" .state "object" $object) -}}
{{- end -}}

{{/* Applies a JSON patch (RFC 6902). A list cannot be changed, only replaced in the map that has it.
Arguments: object, operations, folder. */}}
{{- define "netmgr.patch" -}}
{{- $ := . -}}
{{- range $operation := .operations -}}
  {{- $keys := splitList "/" (trimPrefix "/" .path) -}}
  {{- $key := last $keys | replace "~1" "/" | replace "~0" "~" -}}
  {{- $value := deepCopy (dict "is" .value) -}}
  {{- $place := $.object -}}
  {{- $map := $.object -}}
  {{- $name := "" -}}
  {{- range initial $keys -}}
    {{- if kindIs "slice" $place -}}
      {{- if ge (int .) (len $place) }}{{ $place = "" }}{{ else }}{{ $place = index $place (int .) }}{{ end -}}
    {{- else if kindIs "map" $place -}}
      {{- $map = $place -}}
      {{- $name = . -}}
      {{- $place = get $place . -}}
    {{- end -}}
  {{- end -}}
  {{- if or (not (has .op (list "add" "replace"))) (and (eq .op "replace") (kindIs "slice" $place)) -}}
    {{- fail (printf "%s: this chart does not know the operation %s at %s" $.folder .op .path) -}}
  {{- else if kindIs "map" $place -}}
    {{- $_ := set $place $key $value.is -}}
  {{- else if not (kindIs "slice" $place) -}}
    {{- fail (printf "%s has nothing to change in this mode: %s %s has no %s" $.folder $.object.kind $.object.metadata.name .path) -}}
  {{- else if eq $key "-" -}}
    {{- $_ := set $map $name (append $place $value.is) -}}
  {{- else -}}
    {{- $after := slice $place (int $key) -}}
    {{- $_ := set $map $name (concat (slice $place 0 (int $key)) (list $value.is) $after) -}}
  {{- end -}}
{{- end -}}
{{- end -}}
